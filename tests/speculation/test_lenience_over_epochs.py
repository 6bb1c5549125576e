"""Lenience over several epochs, by enumeration: with the law that tokens really have it does not compound, and the
loss can be told that law (corrected lenience). The published code re-logs q under the newest policy; that drifts."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest

from nemo_specrl.speculation.acceptance import Evidence, Lenient, Probs
from tests.speculation.enumeration import Model, kept_law, outcomes, sequences, table

Record = tuple[tuple[float, ...], ...]
"""The stored law of each token of a rollout, [T][V]."""
State = dict[tuple[tuple[int, ...], Record], float]
"""(tokens, stored laws) -> probability."""


def evidence_of(p: Model, draft: tuple[int, ...], record: Record) -> Evidence:
    """All V candidates stored, as they were recorded."""
    q = np.asarray(record)
    laws = np.asarray([p(draft[:i]) for i in range(len(draft))])
    at = (np.arange(len(draft)), np.asarray(draft))
    return Evidence(laws[at], q[at], laws, q)


def first_epoch(p: Model, length: int) -> State:
    return {(y, tuple(tuple(p(y[:i])) for i in range(length))): mass for y, mass in sequences(p, length, None)}


def next_epoch(rule: Lenient, p: Model, before: State, *, relog: bool) -> State:
    """One epoch of reuse: verify, replace, continue; record the real law, or (relog) the newest policy's."""
    after: State = defaultdict(float)
    for (draft, record), drafted in before.items():
        length = len(draft)
        e = evidence_of(p, draft, record)
        law = rule.law(e)
        ids = [np.arange(e.p_top.shape[1])] * length
        for n, token, probability in outcomes(rule, p, draft, e, ids):
            prefix = draft if token is None else (*draft[:n], token)
            for y, rest in sequences(p, length, None, prefix):
                laws = [
                    law.scale[i] * p(y[:i]) + law.bump[i] if i <= n and not relog else p(y[:i]) for i in range(length)
                ]
                after[(y, tuple(tuple(row) for row in laws))] += drafted * probability * rest
    return after


def drifting(rng: np.random.Generator, epochs: int, step: float) -> list[Model]:
    """Policies that move the same way every epoch: p_e ~ p_0 * exp(e * step * direction)."""
    base, direction = table(rng, 3), table(rng, 3)

    def policy(epoch: int) -> Model:
        def model(prefix: tuple[int, ...]) -> Probs:
            law = base(prefix) * np.exp(epoch * step * direction(prefix))
            return law / law.sum()

        return model

    return [policy(epoch) for epoch in range(epochs)]


def marginal(state: State) -> dict[tuple[int, ...], float]:
    out: dict[tuple[int, ...], float] = defaultdict(float)
    for (tokens, _), probability in state.items():
        out[tokens] += probability
    return out


def tv_to(state: State, p: Model, length: int) -> float:
    truth, law = dict(sequences(p, length, None)), marginal(state)
    return 0.5 * sum(abs(law.get(s, 0.0) - truth.get(s, 0.0)) for s in {*truth, *law})


@pytest.mark.parametrize("lenience", [1.0, math.exp(0.5), 4.0])
def test_weighted_expectation_is_the_policys(lenience: float) -> None:
    """sum over rollouts of probability * prod p/mu equals p, sequence by sequence, after every epoch."""
    rule = Lenient(lenience)
    policies = drifting(np.random.default_rng(0), 4, 0.8)
    state = first_epoch(policies[0], 2)
    for p in policies[1:]:
        state = next_epoch(rule, p, state, relog=False)
        weighted: dict[tuple[int, ...], float] = defaultdict(float)
        for (tokens, record), probability in state.items():
            ratio = math.prod(p(tokens[:i])[y] / record[i][y] for i, y in enumerate(tokens))
            weighted[tokens] += probability * ratio
        for tokens, mass in sequences(p, 2, None):
            assert weighted[tokens] == pytest.approx(mass, abs=1e-12)
        assert tv_to(state, p, 2) > 1e-3, "without the weights the law is another one"


def test_recorded_law_is_the_real_one() -> None:
    """Given the prefix and its history, each token is distributed as recorded: the first token's marginal shows it."""
    rule = Lenient(math.exp(0.5))
    policies = drifting(np.random.default_rng(1), 5, 0.5)
    tracked = relogged = first_epoch(policies[0], 1)
    for p in policies[1:]:
        tracked = next_epoch(rule, p, tracked, relog=False)
        relogged = next_epoch(rule, p, relogged, relog=True)
        law = marginal(tracked)
        for (tokens, record), _ in tracked.items():
            assert record[0][tokens[0]] == pytest.approx(law[tokens], abs=1e-12)
    wrong = marginal(relogged)
    assert max(abs(record[0][y[0]] - wrong[y]) for y, record in relogged) > 0.05


def test_lenience_does_not_compound() -> None:
    """A slow drift, each step within the lenience: re-logging never rejects, so that the rollouts stay those of the
    first epoch and their distance to the policy grows; with the real law it stays within what ell allows."""
    rule = Lenient(math.exp(0.5))
    policies = drifting(np.random.default_rng(2), 12, 0.45)
    first = first_epoch(policies[0], 2)
    tracked = relogged = first
    gaps = []
    for p in policies[1:]:
        tracked = next_epoch(rule, p, tracked, relog=False)
        relogged = next_epoch(rule, p, relogged, relog=True)
        gaps.append((tv_to(tracked, p, 2), tv_to(relogged, p, 2)))
    frozen, law = marginal(first), marginal(relogged)
    assert max(abs(frozen[y] - law[y]) for y in frozen) < 1e-12, "re-logging rejected nothing in eleven epochs"
    assert gaps[-1][1] > 2 * gaps[-1][0]
    assert gaps[-1][1] > gaps[3][1] > gaps[0][1]
    assert all(tv <= 2 * rule.bias_bound for tv, _ in gaps), "two tokens: at most twice the bound of one"


def test_forgiven_tokens_keep_their_law_without_candidates() -> None:
    """Only q(y) stored: a token that passes by lenience alone keeps q, so that a drift is rejected in the end."""
    rule = Lenient(math.exp(0.5))
    q = 0.5
    nothing = np.zeros((1, 0))
    kept = []
    for epoch in range(1, 8):
        p = 0.5 * math.exp(-0.25 * epoch)
        e = Evidence(np.array([p]), np.array([q]), nothing, nothing)
        kept.append(float(kept_law(rule, e)[1]))
        q = float(rule.law(e).at_draft[0])
    assert kept[:2] == [1.0, 1.0]
    assert kept[2] < 1.0
    assert kept[-1] < 1.0
