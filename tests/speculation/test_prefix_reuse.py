"""Ends, limits, provenance and counts of spliced rollouts; and the law of the whole path, by chi-square."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from nemo_specrl.speculation.acceptance import (
    Evidence,
    Exact,
    Full,
    Lenient,
    OneHot,
    Probs,
    Random,
    Rule,
    draw,
    draws,
    make_rule,
)
from nemo_specrl.speculation.lossless import chi_square, critical_value, distance, survival
from nemo_specrl.speculation.prefix_reuse import ReuseStats, assemble, behaviour_logprobs, cut, fresh, splice
from nemo_specrl.speculation.verifier import Draft, Sums, Verification, Verifier, verify_logprobs
from nemo_specrl.types import FinishReason, FloatArray, IntArray, Rollout, TopK
from tests.speculation.enumeration import output_law, sequences
from tests.speculation.rollouts import PROMPT, draft, log_laws, rollout, run, top

EOS = 0
LAWS = log_laws(np.random.default_rng(0), 8, 9)


@dataclass(frozen=True)
class NewTokens:
    """An engine's completion."""

    token_ids: IntArray
    logprobs: FloatArray
    finish_reason: FinishReason
    topk: TopK | None = None

    @staticmethod
    def of(tokens: list[int], reason: FinishReason = "stop", k: int = 0) -> NewTokens:
        ids = np.asarray(tokens, np.int32)
        return NewTokens(ids, np.full(len(ids), -1.5, np.float32), reason, top(LAWS[: len(ids)], k) if k else None)


def verified(source: Rollout, kept: int, replacement: int | None = None) -> Verification:
    n = kept + (replacement is not None)
    floats = np.arange(n, dtype=np.float32) / -10
    topk = None if source.topk is None else source.topk[:n]
    return Verification(kept, replacement, None, floats, floats - 1, topk, Sums(positions=source.length))


@pytest.mark.parametrize(
    ("tokens", "reason", "kept", "replacement", "limit", "finish", "left"),
    [
        ([1, 2, EOS], "stop", 3, None, 8, "stop", 0),  # accepted whole: its end is the end
        ([1, 2, EOS], "stop", 2, 4, 8, None, 5),  # the end rejected: the response goes on
        ([1, 2, 3, 4], "length", 2, EOS, 8, "stop", 0),  # an end as the replacement
        ([1, 2, 3, 4], "length", 4, None, 4, "length", 0),  # as long as the limit
        ([1, 2, 3, 4], "length", 3, 5, 4, "length", 0),  # the replacement fills the limit
        ([1, 2, 3, 4], "length", 3, EOS, 4, "stop", 0),  # ... or ends at it
        ([1, 2, 3, 4], "length", 4, None, 8, None, 4),  # the limit was raised: continue
        ([1, 2, 3, EOS], "stop", 3, None, 3, "length", 0),  # the limit was lowered below the end
        ([1, 2, 3], "stop", 3, None, 8, "stop", 0),  # ended by a stop string, without EOS
        ([1, 2, 3], "length", 0, 7, 8, None, 7),
        ([1, 2, 3], "length", 0, None, 8, None, 8),  # an engine draws the replacement
    ],
)
def test_where_a_response_ends(
    tokens: list[int], reason: FinishReason, kept: int, replacement: int | None, limit: int, finish: str, left: int
) -> None:
    source = rollout(LAWS, tokens, 3, reason=reason)
    d = draft(source, limit=limit)
    plan = splice(Exact(), d, verified(source, kept, replacement), limit=limit, eos_ids={EOS}, version=7)
    assert (plan.finish_reason, plan.max_tokens, plan.kept) == (finish, left, kept)
    assert plan.token_ids.tolist() == tokens[:kept] + ([] if replacement is None else [replacement])
    assert len(plan.token_ids) + plan.max_tokens <= limit
    assert plan.topk is not None
    lengths = {len(plan.logprobs), len(plan.policy_version), len(plan.topk.ids), len(plan.token_ids)}
    assert len(lengths) == 1
    if plan.finished:
        whole = assemble(plan, None, version=7)
        assert (whole.finish_reason, whole.length) == (finish, len(plan.token_ids))
        assert whole.token_ids.tolist().count(EOS) <= 1


def test_a_fully_reused_rollout_needs_no_second_pass() -> None:
    source = rollout(LAWS, [1, 2, EOS], 3, reason="stop")
    plan = splice(Exact(), draft(source), verified(source, 3), limit=8, eos_ids={EOS}, version=7)
    whole = assemble(plan, None, version=7)
    assert whole.reused == 3
    assert whole.policy_logprobs is not None
    np.testing.assert_allclose(whole.policy_logprobs, [0, -0.1, -0.2], atol=1e-7)
    np.testing.assert_allclose(whole.logprobs, [-1, -1.1, -1.2], atol=1e-6)
    assert whole.policy_version.tolist() == [7, 7, 7]


def test_a_continued_rollout_keeps_each_tokens_own_law() -> None:
    source = rollout(LAWS, [1, 2, 3, 4], 3)
    plan = splice(Lenient(2.0), draft(source), verified(source, 2, 5), limit=8, eos_ids={EOS}, version=7)
    whole = assemble(plan, NewTokens.of([6, EOS], k=3), version=7)
    assert whole.token_ids.tolist() == [1, 2, 5, 6, EOS]
    np.testing.assert_allclose(whole.logprobs, [-1, -1.1, -1.2, -1.5, -1.5], atol=1e-6)
    assert whole.policy_logprobs is None
    assert (whole.finish_reason, whole.reused) == ("stop", 2)
    assert whole.topk is not None
    assert whole.topk.ids.shape == (5, 3)
    assert whole.token_ids.dtype == np.int32
    assert assemble(plan, NewTokens.of([6, EOS]), version=7).topk is None


def test_nothing_cached_is_a_plain_request() -> None:
    plan = fresh("prompt", 3, PROMPT, limit=8)
    assert (plan.finished, plan.max_tokens, len(plan.token_ids)) == (False, 8, 0)
    whole = assemble(plan, NewTokens.of([4, EOS], k=2), version=1)
    assert (whole.slot, whole.reused, whole.policy_version.tolist()) == (3, 0, [1, 1])
    assert whole.topk is not None


def test_baselines_keep_the_old_law() -> None:
    source = rollout(LAWS, [1, 2, 3, EOS], 3, reason="stop").with_(policy_version=np.array([3, 3, 4, 4], np.int32))
    full = splice(Full(), draft(source), cut(Full(), draft(source), seed=0, step=1), limit=8, eos_ids={EOS}, version=9)
    whole = assemble(full, None, version=9)
    assert whole.policy_version.tolist() == [3, 3, 4, 4]
    np.testing.assert_array_equal(whole.logprobs, source.logprobs)
    assert whole.policy_logprobs is None, "nobody has looked at these tokens under the new policy"
    cuts = [cut(Random(), draft(source.with_(slot=s)), seed=0, step=1).kept for s in range(300)]
    assert set(cuts) == {0, 1, 2, 3, 4}
    unknown = draft(rollout(LAWS, [1, 2, 99, 4], 3), vocab=9)
    assert cut(Full(), unknown, seed=0, step=1).kept == 2


def test_an_excluded_token_that_comes_back_is_caught() -> None:
    source = rollout(LAWS, [1, 2, 3], 0)
    logprobs = np.array([0.0, -50.0, -1.0], np.float32)
    d = draft(source)
    plan = splice(
        OneHot(), d, verify_logprobs(OneHot(), d, logprobs, seed=0, step=0), limit=8, eos_ids={EOS}, version=1
    )
    assert (plan.kept, plan.exclude, plan.max_tokens) == (1, 2, 7)
    with pytest.raises(AssertionError, match="excluded"):
        assemble(plan, NewTokens.of([2, 3]), version=1)
    assert assemble(plan, NewTokens.of([3, 2]), version=1).length == 3


def test_behaviour_is_told_up_to_the_first_rejected_position() -> None:
    source = rollout(LAWS, [1, 2, 3, 4, 5], 0).with_(reused=2)
    policy = np.full(5, -9.0, np.float32)
    assert behaviour_logprobs(source, policy, "none") is policy
    for correction in ("token", "prefix", "sequence"):
        told = behaviour_logprobs(source, policy, correction)
        np.testing.assert_array_equal(told[:3], source.logprobs[:3])
        np.testing.assert_array_equal(told[3:], policy[3:])


def test_counts_add_up_and_rates_are_ratios_of_sums() -> None:
    source = rollout(LAWS, [1, 2, 3, EOS], 3, reason="stop")
    d = draft(source)
    total = ReuseStats()
    for kept, replacement, tail in [(4, None, None), (1, 5, [6, EOS]), (0, 3, [EOS])]:
        v = verified(source, kept, replacement)
        plan = splice(Exact(), d, v, limit=8, eos_ids={EOS}, version=1)
        whole = assemble(plan, None if tail is None else NewTokens.of(tail), version=1)
        total = total + ReuseStats.of(d, v, whole, plan)
    plan = fresh("prompt", 9, PROMPT, limit=8)
    total = total + ReuseStats.of(None, None, assemble(plan, NewTokens.of([1, EOS]), version=1), plan)
    metrics = total.metrics()
    assert (metrics["reuse/full"], metrics["reuse/partial"], metrics["reuse/none"]) == (1, 1, 1)
    assert (metrics["rollout/new_tokens"], metrics["rollout/reused_tokens"]) == (5, 5)
    assert metrics["rollout/replaced_tokens"] == 2
    assert metrics["rollout/verified_tokens"] == 12
    assert metrics["reuse/kept_fraction"] == pytest.approx(5 / 12)
    assert metrics["reuse/token_fraction"] == pytest.approx(5 / 12)
    assert metrics["reuse/finished"] == 1
    assert "reuse/bias_tv" not in metrics, "a rate of nothing is left out"
    assert not [name for name in ReuseStats().metrics() if "fraction" in name]


# The law of the whole path. V = 3, R = 3, EOS = 0: 1 + 2 + 12 = 15 sequences. Error level 0.1 % for each test.

P = log_laws(np.random.default_rng(20), 3, 3)
Q = log_laws(np.random.default_rng(21), 3, 3)


def law(laws: torch.Tensor) -> dict[tuple[int, ...], float]:
    probs = laws.double().exp().numpy()
    return dict(sequences(lambda prefix: probs[len(prefix)] / probs[len(prefix)].sum(), 3, EOS))


def whole_path(rule: Rule, n: int, k: int) -> dict[tuple[int, ...], int]:
    """n rollouts drafted from Q, verified against P, continued by a perfect engine: the sequences' counts."""
    rng = np.random.default_rng(5)
    names, masses = zip(*law(Q).items(), strict=True)
    drafts: list[Draft] = []
    for slot, i in enumerate(rng.choice(len(names), n, p=masses)):
        reason: FinishReason = "stop" if names[i][-1] == EOS else "length"
        drafts.append(draft(rollout(Q, list(names[i]), k, slot=slot, reason=reason), limit=3))
    p = P.double().exp().numpy()
    counts: dict[tuple[int, ...], int] = dict.fromkeys(law(P), 0)
    for d, v in zip(drafts, run(Verifier(rule, drafts, seed=1, step=1, topk=0), P, 2), strict=True):
        plan = splice(rule, d, v, limit=3, eos_ids={EOS}, version=1)
        tail: list[int] = []
        while not plan.finished and len(tail) < plan.max_tokens and EOS not in tail:
            tail.append(draw(p[len(plan.token_ids) + len(tail)], rng.random()))
        reason = "stop" if EOS in tail else "length"
        whole = assemble(plan, NewTokens.of(tail, reason) if tail else None, version=1)
        counts[tuple(whole.token_ids.tolist())] += 1
    return counts


def statistic(counts: dict[tuple[int, ...], int]) -> float:
    probs = np.array(list(law(P).values()))
    return chi_square(np.array(list(counts.values())), probs / probs.sum())


LIMIT = critical_value(14, 1e-3)


@pytest.mark.parametrize(("name", "k"), [("exact", 3), ("exact", 1), ("one_hot", 0), ("block", 3), ("block", 2)])
def test_the_whole_path_samples_from_the_policy(name: str, k: int) -> None:
    assert statistic(whole_path(make_rule(name), 1000, k)) < LIMIT


def test_the_same_test_finds_lenient_out() -> None:
    """The power check: SPEC-RL's rule at ell = 1 must fail; its known law makes that all but certain."""
    probs = [row.numpy() for row in (P.double().exp(), Q.double().exp())]
    p, q = (lambda prefix, of=of: of[len(prefix)] / of[len(prefix)].sum() for of in probs)
    known = output_law(Lenient(1.0), p, q, 3, EOS, 3)
    truth = law(P)
    effect = distance(np.array([known[s] for s in truth]), np.array(list(truth.values())))
    assert survival(LIMIT, 14, 1000 * effect) > 0.9999
    assert statistic(whole_path(Lenient(1.0), 1000, 3)) > 2 * LIMIT


def test_chi_square_of_one_position_at_two_hundred_thousand_draws() -> None:
    """The rules and the inverse CDF at n = 2e5: exact and one_hot pass at the 0.1 % level, lenient fails by far."""
    rng, n = np.random.default_rng(11), 200_000
    p, q = rng.dirichlet(np.ones(10)), rng.dirichlet(np.ones(10))
    limit = critical_value(9, 1e-3)
    shared = np.minimum(p, q)
    biased = shared + (1 - shared.sum()) * p
    assert survival(limit, 9, n * distance(biased, p)) > 0.9999, "the power against lenient's own law"
    for rule, fails in [(Exact(), False), (OneHot(), False), (Lenient(1.0), True)]:
        counts = one_position(rule, p, q, n, rng)
        assert (chi_square(counts, p) > limit) == fails
    expected = chi_square(one_position(Lenient(1.0), p, q, n, rng), biased)
    assert expected < limit, "lenient has the law that ALGORITHMS states"


def one_position(rule: Rule, p: Probs, q: Probs, n: int, rng: np.random.Generator) -> np.ndarray:
    y = rng.choice(len(p), n, p=q)
    e = Evidence(p[y], q[y], np.broadcast_to(p, (n, 10)), np.broadcast_to(q, (n, 10)))
    passed = rng.random(n) < rule.test(e, rule.weights(e)[:-1])
    ids = np.arange(10)
    rest = np.array([rule.residual(p, token, ids, q) for token in range(10)])
    rejected = np.bincount(y[~passed], minlength=10)
    replaced = [draws(rest[token], rng.random(count)) for token, count in enumerate(rejected) if count]
    return np.bincount(np.concatenate([y[passed], *replaced]), minlength=10)
