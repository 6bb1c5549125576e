"""Each named variant against its paper's formula, written out in loops; values and gradients, from rewards to loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nemo_specrl.algorithms.loss import policy_loss
from nemo_specrl.algorithms.overlong import soft_overlong_punishment
from nemo_specrl.algorithms.rows import build_rows
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.config.compose import compose
from nemo_specrl.contracts.rows import LossBatch
from nemo_specrl.contracts.sample import RewardResult, Sample
from nemo_specrl.policy.megatron.loss import token_weights
from nemo_specrl.types import Prompt, Rollout

LENGTHS, GROUPS, REWARDS = (3, 6, 1, 4, 2, 5), "aaabbb", (1.0, 0.0, 0.25, 0.0, 1.0, 1.0)
N, T = len(LENGTHS), max(LENGTHS)


def logprobs(spread: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    """(policy, old) [N, T]; far enough apart that clips act."""
    draw = torch.Generator().manual_seed(5)
    old = -1 - torch.rand(N, T, generator=draw, dtype=torch.float64)
    return (old + spread * torch.randn(N, T, generator=draw, dtype=torch.float64)).requires_grad_(), old


def ours(config: AlgorithmConfig, policy: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """The loss as an update computes it: samples -> rows -> weights -> loss."""
    samples = []
    for i, (length, key, reward) in enumerate(zip(LENGTHS, GROUPS, REWARDS, strict=True)):
        zeros = np.zeros(length, np.int32)
        rollout = Rollout(
            key, i, zeros[:1], zeros, old[i, :length].numpy().astype(np.float32), zeros, "stop",
            policy_logprobs=old[i, :length].numpy(),
        )  # fmt: skip
        samples.append(Sample(Prompt(zeros[:1], "", ""), rollout, reward=RewardResult(reward)))
    rows = build_rows(config, samples)
    assert len(rows) == N
    advantages, weights = torch.zeros(N, T, dtype=torch.float64), torch.zeros(N, T, dtype=torch.float64)
    for i, (row, weight) in enumerate(zip(rows, token_weights(rows, config.loss_level), strict=True)):
        advantages[i, : LENGTHS[i]] = torch.tensor(row.advantages)
        weights[i, : LENGTHS[i]] = torch.tensor(weight)
    loss, _ = policy_loss(config)(policy, LossBatch(old, old, advantages, weights))
    return loss


def group_of(i: int) -> list[int]:
    return [j for j in range(N) if GROUPS[j] == GROUPS[i]]


def centred(i: int) -> float:
    return REWARDS[i] - float(np.mean([REWARDS[j] for j in group_of(i)]))


def others(i: int) -> float:
    return REWARDS[i] - float(np.mean([REWARDS[j] for j in group_of(i) if j != i]))


def whitened(i: int) -> float:
    return (REWARDS[i] - float(np.mean(REWARDS))) / float(np.std(REWARDS, ddof=1))


def normalised(i: int) -> float:
    return centred(i) / float(np.std([REWARDS[j] for j in group_of(i)], ddof=1))


def clipped(r: torch.Tensor, a: float, low: float = 0.2, high: float = 0.2) -> torch.Tensor:
    return torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)


def tokens(policy: torch.Tensor, old: torch.Tensor, i: int) -> torch.Tensor:
    return (policy[i, : LENGTHS[i]] - old[i, : LENGTHS[i]]).exp()


def dr_grpo(policy: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """1/G sum_i sum_t, here times the factor that its constant and our number of tokens differ by."""
    return -sum(clipped(tokens(policy, old, i), centred(i)).sum() for i in range(N)) / sum(LENGTHS)  # type: ignore[return-value]


def rloo(policy: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return -sum(clipped(tokens(policy, old, i), others(i)).mean() for i in range(N)) / N  # type: ignore[return-value]


def reinforce_pp(policy: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    return -sum(clipped(tokens(policy, old, i), whitened(i)).sum() for i in range(N)) / sum(LENGTHS)  # type: ignore[return-value]


def gspo(policy: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    ratios = [tokens(policy, old, i).log().mean().exp() for i in range(N)]
    return -sum(clipped(r, normalised(i), 3e-4, 4e-4) for i, r in enumerate(ratios)) / N  # type: ignore[return-value]


def cispo(policy: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    terms = [
        (tokens(policy, old, i).clamp(max=1.28).detach() * normalised(i) * policy[i, : LENGTHS[i]]).sum()
        for i in range(N)
    ]
    return -sum(terms) / sum(LENGTHS)  # type: ignore[return-value]


PAPERS = {"dr_grpo": dr_grpo, "rloo": rloo, "reinforce_pp": reinforce_pp, "gspo": gspo, "cispo": cispo}


@pytest.mark.parametrize("name", PAPERS)
def test_a_variant_is_its_papers_formula(name: str) -> None:
    config = compose([f"algorithm={name}"]).algorithm
    assert config.name == name
    policy, old = logprobs()
    found, expected = ours(config, policy, old), PAPERS[name](policy, old)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    gradient, wanted = (torch.autograd.grad(x, policy)[0] for x in (found, expected))
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-8)
    plain = torch.autograd.grad(ours(AlgorithmConfig(), policy, old), policy)[0]
    assert (gradient - plain).abs().max() > 1e-3, "a variant, and not GRPO again"


def test_rloo_on_policy_is_reinforce_with_its_baseline() -> None:
    """At r = 1 the gradient is that of -(1/k) sum_i (R_i - mean of others) log policy(y_i), per token of y_i."""
    policy, _ = logprobs()
    gradient = torch.autograd.grad(ours(compose(["algorithm=rloo"]).algorithm, policy, policy.detach()), policy)[0]
    for i in range(N):
        expected = torch.zeros(T, dtype=torch.float64)
        expected[: LENGTHS[i]] = -others(i) / LENGTHS[i] / N
        torch.testing.assert_close(gradient[i], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("ratio", "value"), [(2.0, 2.0), (2.9, 2.9), (5.0, 3.0), (0.5, 0.8)])
def test_dual_clip_bounds_the_loss_of_a_bad_token(ratio: float, value: float) -> None:
    """max(min(r A, clip(r) A), c A) at A = -1, c = 3; at A = 1 it changes nothing."""
    batch = [torch.tensor([[x]], dtype=torch.float64) for x in (0.0, 0.0, -1.0, 1.0)]
    policy = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    loss, _ = policy_loss(AlgorithmConfig(dual_clip=3.0))(policy, LossBatch(*batch))
    assert loss.item() == pytest.approx(value)
    (gradient,) = torch.autograd.grad(loss, policy)
    assert (gradient.item() != 0) == (ratio in (2.0, 2.9))
    batch[2] = -batch[2]
    both = [policy_loss(AlgorithmConfig(dual_clip=c))(policy, LossBatch(*batch))[0].item() for c in (3.0, None)]
    assert both[0] == both[1]


def test_soft_overlong_punishment_is_dapos_equation_13() -> None:
    """Its own numbers: a limit of 20,480 tokens, the last 4,096 of them soft."""
    lengths = [0, 16384, 16385, 18432, 20480, 30000]
    found = soft_overlong_punishment(lengths, 20480, 4096)
    assert found.tolist() == [0, 0, -1 / 4096, -0.5, -1, -1]
    for buffer in (0, -1, 20481):
        with pytest.raises(ValueError, match="between 1 and the limit"):
            soft_overlong_punishment(lengths, 20480, buffer)
