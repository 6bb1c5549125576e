"""Exact laws by enumeration, of the rules' own code. A model maps a prefix to a distribution over V tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

from nemo_specrl.speculation.acceptance import Evidence, Ids, Probs, Rule

Model = Callable[[tuple[int, ...]], Probs]
Joint = dict[tuple[int, ...], float]


def constant(law: Probs) -> Model:
    """The same distribution after every prefix."""
    return lambda _: law


def table(rng: np.random.Generator, vocab: int, sparsity: float = 0.0) -> Model:
    """A random model that depends on the whole prefix; `sparsity`: chance of a token to have no mass."""
    memory: dict[tuple[int, ...], Probs] = {}

    def model(prefix: tuple[int, ...]) -> Probs:
        if prefix not in memory:
            law = rng.dirichlet(np.full(vocab, 0.7)) * (rng.random(vocab) >= sparsity)
            memory[prefix] = law / law.sum() if law.sum() > 0 else np.eye(vocab)[int(rng.integers(vocab))]
        return memory[prefix]

    return model


def sequences(
    model: Model, length: int, eos: int | None, prefix: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every complete sequence that begins with `prefix`, with its probability given the prefix."""
    if len(prefix) == length or (prefix and prefix[-1] == eos):
        yield prefix, 1.0
        return
    for token, probability in enumerate(model(prefix)):
        if probability > 0:
            for whole, rest in sequences(model, length, eos, (*prefix, token)):
                yield whole, probability * rest


def top(q: Probs, k: int) -> tuple[Ids, Probs]:
    ids = np.argsort(-q, kind="stable")[:k]
    return np.where(q[ids] > 0, ids, -1), q[ids]


def evidence(p: Model, q: Model, draft: tuple[int, ...], k: int) -> tuple[Evidence, list[Ids]]:
    """What the verifier would know of `draft` with the k likeliest tokens of q stored (0: only q(y))."""
    rows, ids = [], []
    for i, token in enumerate(draft):
        law_p, law_q = p(draft[:i]), q(draft[:i])
        s, q_top = top(law_q, k)
        stored = k == 0 or token in s
        rows.append((law_p[token], law_q[token] if stored else 0.0, np.where(s >= 0, law_p[s], 0.0), q_top))
        ids.append(s)
    return Evidence(*(np.asarray(column, dtype=np.float64) for column in zip(*rows, strict=True))), ids


def kept_law(rule: Rule, e: Evidence) -> Probs:
    """[T + 1] probability that exactly n draft tokens are kept."""
    weights = rule.weights(e)
    tests = rule.test(e, weights)
    if not rule.longest:
        alive = np.concatenate([[1.0], np.cumprod(tests)])
        return alive * np.concatenate([1.0 - tests, [1.0]])
    tests = np.concatenate([tests, [rule.final(weights[-1])]])
    tests[0] = 1.0
    later_fail = np.concatenate([np.cumprod((1.0 - tests)[::-1])[::-1][1:], [1.0]])
    return tests * later_fail


def outcomes(
    rule: Rule, p: Model, draft: tuple[int, ...], e: Evidence, ids: list[Ids]
) -> Iterator[tuple[int, int | None, float]]:
    """(kept, replacement, probability) of one verifier call."""
    weights = rule.weights(e)
    for n, probability in enumerate(kept_law(rule, e)):
        if probability <= 0:
            continue
        if n == len(draft):
            yield n, None, probability
            continue
        rest = rule.residual(p(draft[:n]), draft[n], ids[n], e.q_top[n], float(weights[n]))
        rest = rest if rest.sum() > 0 else p(draft[:n])
        for token, mass in enumerate(rest / rest.sum()):
            if mass > 0:
                yield n, token, probability * mass


def output_law(rule: Rule, p: Model, q: Model, length: int, eos: int | None, k: int) -> Joint:
    """The joint law of the finished rollout: draft from q, verify, replace, continue from p to `length`."""
    joint: Joint = defaultdict(float)
    for draft, drafted in sequences(q, length, eos):
        e, ids = evidence(p, q, draft, k)
        for n, token, probability in outcomes(rule, p, draft, e, ids):
            prefix = draft[:n] if token is None else (*draft[:n], token)
            for whole, rest in sequences(p, length, eos, prefix):
                joint[whole] += drafted * probability * rest
    return joint


def gap(joint: Joint, p: Model, length: int, eos: int | None) -> float:
    """Largest difference between a joint law and the policy's."""
    truth = dict(sequences(p, length, eos))
    return max(abs(joint.get(s, 0.0) - truth.get(s, 0.0)) for s in {*joint, *truth})


def mean_kept(rule: Rule, p: Model, q: Model, length: int, eos: int | None, k: int) -> float:
    """Expected number of kept draft tokens."""
    return sum(
        drafted * float(kept_law(rule, evidence(p, q, draft, k)[0]) @ np.arange(len(draft) + 1))
        for draft, drafted in sequences(q, length, eos)
    )
