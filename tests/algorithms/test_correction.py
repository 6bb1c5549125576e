"""What is left of the gradient's bias under lenient reuse with each correction: exact, nothing is sampled.

Policies are tables of logits over three tokens, responses have three tokens. Every draft, every place where it can end,
every replacement and continuation is enumerated with the rule's own code, and the loss's own gradient is summed over
all of them, each with its probability. docs/concepts.md has the figures."""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from nemo_specrl.algorithms.loss import policy_loss
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.config.reuse import CORRECTIONS
from nemo_specrl.contracts.rows import LossBatch
from nemo_specrl.policy.megatron.law import truncation_mask
from nemo_specrl.speculation.acceptance import Lenient
from nemo_specrl.speculation.prefix_reuse import behaviour_logprobs
from nemo_specrl.types import Rollout
from tests.speculation.enumeration import Model, evidence, outcomes, sequences

V, T = 3, 3
NODES = {prefix: i for i, prefix in enumerate(p for n in range(T) for p in product(range(V), repeat=n))}
PAIRS = 12
MOVED = 0.7
"""Standard deviation of what the logits moved between draft and policy: a total variation of 0.16 a token."""
NO_CAP = 1e6


def model(logits: torch.Tensor) -> Model:
    laws = logits.softmax(-1).numpy()
    return lambda prefix: laws[NODES[prefix]]


def rollouts(p: Model, q: Model, ell: float) -> list[tuple[Rollout, float]]:
    """Every (rollout, probability) of lenient reuse of a draft of q under the policy p, with the law of its tokens."""
    rule, found = Lenient(ell), []
    for draft, drafted in sequences(q, T, None):
        e, ids = evidence(p, q, draft, V)
        law = rule.law(e)
        for kept, replacement, probability in outcomes(rule, p, draft, e, ids):
            prefix = draft[:kept] if replacement is None else (*draft[:kept], replacement)
            for y, rest in sequences(p, T, None, prefix):
                mu = np.array([p(y[:i])[token] for i, token in enumerate(y)])
                for i in range(min(kept + 1, T)):
                    at = np.flatnonzero(ids[i] == y[i])
                    mu[i] = law.scale[i] * mu[i] + float(law.bump[i][at].sum())
                found.append((of(y, mu, kept), drafted * probability * rest))
    return found


def of(y: tuple[int, ...], mu: np.ndarray, kept: int) -> Rollout:
    ids = np.asarray(y, np.int32)
    return Rollout("p", 0, ids[:0], ids, np.log(mu), np.zeros(T, np.int32), "length", reused=kept)


def gradient(
    logits: torch.Tensor, reward: np.ndarray, sample: list[tuple[Rollout, float]], correction: str, cap: float
):
    """[nodes, V] the expected gradient of minus the loss; the baseline is the policy's own mean reward."""
    logits = logits.clone().requires_grad_()
    table = logits.log_softmax(-1)
    nodes = torch.tensor([[NODES[tuple(r.token_ids[:i].tolist())] for i in range(T)] for r, _ in sample])
    tokens = torch.tensor(np.array([r.token_ids for r, _ in sample]), dtype=torch.long)
    logprobs = table[nodes, tokens]
    old = logprobs.detach()
    told = [behaviour_logprobs(r, row, correction) for (r, _), row in zip(sample, old.numpy(), strict=True)]
    mean = sum(probability * reward[tuple(y)] for y, probability in sequences(model(logits.detach()), T, None))
    advantages = torch.tensor([[reward[tuple(r.token_ids)] - mean] * T for r, _ in sample])
    weights = torch.tensor([[probability] * T for _, probability in sample], dtype=torch.float64)
    batch = LossBatch(old, torch.tensor(np.array(told)), advantages, weights)
    loss, _ = policy_loss(AlgorithmConfig(max_behaviour_ratio=cap), correction)(logprobs, batch)
    return -torch.autograd.grad(loss, logits)[0]


@cache
def errors(ell: float) -> dict[tuple[str, float], float]:
    """Mean over pairs of near policies of |gradient - the policy's| / |the policy's|, by correction and cap."""
    rng = np.random.default_rng(0)
    found: dict[tuple[str, float], list[float]] = {}
    for _ in range(PAIRS):
        old = torch.tensor(rng.normal(size=(len(NODES), V)))
        new = old + MOVED * torch.tensor(rng.normal(size=(len(NODES), V)))
        reward = rng.normal(size=(V,) * T)
        p = model(new)
        fresh = [(of(y, np.array([p(y[:i])[k] for i, k in enumerate(y)]), 0), m) for y, m in sequences(p, T, None)]
        truth = gradient(new, reward, fresh, "none", NO_CAP)
        reused = rollouts(p, model(old), ell)
        assert sum(probability for _, probability in reused) == pytest.approx(1)
        for correction, cap in product(CORRECTIONS, (NO_CAP, AlgorithmConfig().max_behaviour_ratio)):
            off = gradient(new, reward, reused, correction, cap) - truth
            found.setdefault((correction, cap), []).append(float(off.norm() / truth.norm()))
    return {key: float(np.mean(values)) for key, values in found.items()}


@pytest.mark.parametrize(
    ("ell", "correction", "error", "capped"),
    [
        (1.0, "none", 0.218, 0.218),
        (1.0, "token", 0.164, 0.164),
        (1.0, "prefix", 0.091, 0.092),
        (1.0, "sequence", 0.0, 0.013),
        (math.exp(0.5), "none", 0.483, 0.483),
        (math.exp(0.5), "token", 0.352, 0.352),
        (math.exp(0.5), "prefix", 0.215, 0.224),
        (math.exp(0.5), "sequence", 0.0, 0.084),
    ],
)
def test_error_of_the_expected_gradient(ell: float, correction: str, error: float, capped: float) -> None:
    """Without a cap, and with the default one of 2. Sequence weights alone leave none, to rounding."""
    found = errors(ell)
    assert found[correction, NO_CAP] == pytest.approx(error, abs=0.005 if error else 1e-12)
    assert found[correction, 2.0] == pytest.approx(capped, abs=0.005)


def test_what_lenient_reuse_never_samples_no_weight_can_mend() -> None:
    """A token that has just come into the nucleus: every draft is accepted, and nothing drawn from the policy."""
    q, p = np.array([0.6, 0.4, 0.0]), np.array([0.55, 0.35, 0.1])
    law = Lenient(math.exp(0.5)).law(evidence(lambda _: p, lambda _: q, (0,), V)[0])
    mu = law.scale[0] * p
    mu[np.argsort(-q, kind="stable")] += law.bump[0]
    assert law.scale[0] == pytest.approx(0, abs=1e-12)
    assert mu.tolist() == pytest.approx([0.6, 0.4, 0.0])
    weighted = np.where(mu > 1e-12, mu * (p / np.maximum(mu, 1e-12)), 0.0)
    assert weighted.sum() == pytest.approx(0.9), "a tenth of the policy is missing from every weighted mean"


def test_how_often_a_nucleus_loses_mass() -> None:
    """500 near pairs of laws over 20 tokens, top_p = 0.9: 13 % of them lose mass under ell = e^0.5, up to 12 % of it
    (95 % interval of the share: +- 3 %). Without truncation none does."""
    rng = np.random.default_rng(0)
    for top_p, share, most in ((0.9, 0.13, 0.12), (1.0, 0.0, 0.0)):
        lost = []
        for _ in range(500):
            z = torch.tensor(2 * rng.normal(size=(1, 20)))
            laws = [z, z + 0.3 * torch.tensor(rng.normal(size=(1, 20)))]
            q, p = (x.masked_fill(~truncation_mask(x, 0, top_p), -torch.inf).softmax(-1)[0].numpy() for x in laws)
            kept = np.minimum(q, math.exp(0.5) * p)
            lost.append(float(p[q == 0].sum()) if kept.sum() > 1 - 1e-12 else 0.0)
        assert np.mean(np.array(lost) > 0) == pytest.approx(share, abs=0.03)
        assert max(lost) == pytest.approx(most, abs=0.03)


def test_an_unknown_correction() -> None:
    with pytest.raises(ValueError, match="choose one of none, token, prefix, sequence"):
        policy_loss(AlgorithmConfig(), "behaviour")
