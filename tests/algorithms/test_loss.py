import math
from dataclasses import fields

import pytest
import torch

from nemo_specrl.algorithms.loss import policy_loss
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.contracts.rows import LossBatch

GRPO = AlgorithmConfig()


def batch_of(old, advantages, weights, behaviour=None, ref=None, dtype=torch.float64):
    def tensor(values):
        return None if values is None else torch.as_tensor(values, dtype=dtype)

    return LossBatch(
        old_logprobs=tensor(old),
        behaviour_logprobs=tensor(old if behaviour is None else behaviour),
        advantages=tensor(advantages),
        weights=tensor(weights),
        ref_logprobs=tensor(ref),
    )


def random_batch(rows=4, tokens=6, seed=0, reference=True):
    generator = torch.Generator().manual_seed(seed)

    def normal(scale=1.0):
        return scale * torch.randn(rows, tokens, generator=generator, dtype=torch.float64)

    policy = -2 + normal(0.5)
    mask = (torch.arange(tokens) < torch.tensor([[tokens], [2], [4], [1]])[:rows]).double()
    old, behaviour, ref = policy + normal(0.3), policy + normal(0.6), policy + normal(0.3)
    return policy, batch_of(old, normal(), mask / mask.sum(), behaviour, ref if reference else None)


def split(batch, rows):
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return LossBatch(**{name: None if v is None else v[rows] for name, v in values.items()})


def test_on_policy_loss_is_minus_the_mean_advantage_and_its_gradient_is_reinforce():
    logprobs = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_loss(GRPO)(logprobs, batch_of(logprobs.detach(), [[2.0, -1.0]], [[0.5, 0.5]]))
    loss.backward()
    assert loss.item() == pytest.approx(-0.5)
    assert logprobs.grad.tolist() == [[-1.0, 0.5]]
    assert metrics["ratio"].item() == pytest.approx(1)
    assert metrics["behaviour_ratio"].item() == 1.0
    assert metrics["kl_k3"].item() == metrics["kl_k1"].item() == metrics["ratio_outside"].item() == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient_flows", "clipped"),
    [
        (1.5, 1.0, -1.28, False, "clip_high"),  # above 1 + clip_high and still rising: stopped
        (1.5, -1.0, 1.5, True, None),  # going the wrong way: never clipped
        (0.5, -1.0, 0.8, False, "clip_low"),
        (0.5, 1.0, -0.5, True, None),
        (1.25, 1.0, -1.25, True, None),  # inside the upper bound alone
    ],
)
def test_the_two_clip_bounds(ratio, advantage, expected, gradient_flows, clipped):
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.28)
    loss, metrics = policy_loss(config)(logprobs, batch_of([[0.0]], [[advantage]], [[1.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(expected)
    assert (logprobs.grad.item() != 0) == gradient_flows
    assert {name for name in ("clip_low", "clip_high") if metrics[name].item() == 1} == ({clipped} - {None})
    assert metrics["ratio_outside"].item() == 1


def test_three_distinct_laws_weigh_old_over_behaviour_not_policy_over_behaviour():
    """slime#179: the importance weight must use the old policy. All three laws differ here, so a mix-up shows."""
    policy, old, behaviour = math.log(0.30), math.log(0.25), math.log(0.20)
    batch = batch_of([[old]], [[1.0]], [[1.0]], behaviour=[[behaviour]])
    config = AlgorithmConfig(clip_high=10.0)
    loss, metrics = policy_loss(config)(torch.tensor([[policy]], dtype=torch.float64), batch)
    assert loss.item() == pytest.approx(-(0.25 / 0.20) * (0.30 / 0.25))
    assert metrics["behaviour_ratio"].item() == pytest.approx(1.25)
    assert metrics["ratio"].item() == pytest.approx(1.2)


def test_the_behaviour_weight_is_truncated_from_above_only():
    batch = batch_of([[0.0, 0.0]], [[1.0, 1.0]], [[0.5, 0.5]], behaviour=[[-3.0, 3.0]])
    loss, metrics = policy_loss(GRPO)(torch.zeros(1, 2, dtype=torch.float64), batch)
    assert loss.item() == pytest.approx(-0.5 * (2.0 + math.exp(-3)))
    assert metrics["behaviour_capped"].item() == 0.5


def test_k3_to_the_reference():
    config = AlgorithmConfig(kl_coef=0.1)
    batch = batch_of([[-1.0]], [[0.0]], [[1.0]], ref=[[-1.5]])
    loss, metrics = policy_loss(config)(torch.tensor([[-1.0]], dtype=torch.float64), batch)
    k3 = math.exp(-0.5) - 1 + 0.5
    assert metrics["ref_kl"].item() == pytest.approx(k3)
    assert loss.item() == pytest.approx(0.1 * k3)


def test_a_kl_without_a_reference_is_refused():
    with pytest.raises(ValueError, match="kl_coef"):
        policy_loss(AlgorithmConfig(kl_coef=0.1))(torch.zeros(1, 1), batch_of([[0.0]], [[0.0]], [[1.0]]))


def test_the_expected_gradient_is_the_policys_under_the_corrected_behaviour():
    """By enumeration, V = 4: E_behaviour[w * d log p * A] = E_policy[d log p * A] where no clip acts."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, generator=generator, dtype=torch.float64, requires_grad=True)
    advantage = torch.randn(4, generator=generator, dtype=torch.float64)
    behaviour = (0.3 * torch.randn(4, generator=generator, dtype=torch.float64) + logits.detach()).log_softmax(0)
    logprobs = logits.log_softmax(0)
    expected = torch.autograd.grad(-(logprobs.exp() * advantage).sum(), logits, retain_graph=True)[0]
    old = logprobs.detach()
    found = []
    for law in (behaviour, old):  # with the correction, and with the behaviour law ignored
        batch = batch_of(old[None], advantage[None], behaviour.exp()[None], behaviour=law[None])
        loss, _ = policy_loss(AlgorithmConfig(max_behaviour_ratio=100.0))(logprobs[None], batch)
        found.append(torch.autograd.grad(loss, logits, retain_graph=True)[0])
    torch.testing.assert_close(found[0], expected)
    assert (found[1] - expected).abs().max() > 1e-2  # power: uncorrected, it is biased


def test_gradient_against_finite_differences():
    logprobs, batch = random_batch()
    loss_fn = policy_loss(AlgorithmConfig(kl_coef=0.2, clip_high=0.28))
    logprobs.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss_fn(x, batch)[0], logprobs, eps=1e-7, atol=1e-6)


def test_any_split_into_micro_batches_gives_the_same_loss_gradient_and_metrics():
    logprobs, batch = random_batch()
    loss_fn = policy_loss(AlgorithmConfig(kl_coef=0.2))
    whole = logprobs.clone().requires_grad_()
    loss, metrics = loss_fn(whole, batch)
    loss.backward()
    parts = logprobs.clone().requires_grad_()
    results = [loss_fn(parts[rows], split(batch, rows)) for rows in (slice(0, 1), slice(1, 3), slice(3, 4))]
    total = sum(part for part, _ in results)
    total.backward()
    torch.testing.assert_close(total, loss)
    torch.testing.assert_close(parts.grad, whole.grad)
    for name, value in metrics.items():
        torch.testing.assert_close(sum(part[name] for _, part in results), value)


@pytest.mark.parametrize("junk", [0.0, float("nan"), float("inf"), -float("inf")])
def test_padding_may_hold_anything(junk):
    logprobs, batch = random_batch()
    loss_fn = policy_loss(AlgorithmConfig(kl_coef=0.2))
    clean = logprobs.clone().requires_grad_()
    loss, metrics = loss_fn(clean, batch)
    loss.backward()
    padding = batch.weights == 0
    values = {f.name: getattr(batch, f.name).clone() for f in fields(batch)}
    for name in ("old_logprobs", "behaviour_logprobs", "advantages", "ref_logprobs"):
        values[name][padding] = junk
    dirty = logprobs.clone().requires_grad_()
    dirty_loss, dirty_metrics = loss_fn(dirty, LossBatch(**values))
    dirty_loss.backward()
    torch.testing.assert_close(dirty_loss, loss)
    torch.testing.assert_close(dirty.grad, clean.grad)
    torch.testing.assert_close(dirty_metrics, metrics)
    assert (dirty.grad[padding] == 0).all()


def test_a_fully_masked_batch_has_zero_loss_and_zero_gradient():
    logprobs, batch = random_batch()
    values = {f.name: getattr(batch, f.name) for f in fields(batch)} | {"weights": torch.zeros_like(batch.weights)}
    logprobs.requires_grad_()
    loss, metrics = policy_loss(AlgorithmConfig(kl_coef=0.2))(logprobs, LossBatch(**values))
    loss.backward()
    assert loss.item() == 0
    assert (logprobs.grad == 0).all()
    assert all(value.item() == 0 for value in metrics.values())


def test_a_runaway_token_keeps_the_loss_finite():
    batch = batch_of([[-500.0]], [[-1.0]], [[1.0]], dtype=torch.float32)
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    loss, metrics = policy_loss(GRPO)(logprobs, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logprobs.grad).all()
    assert metrics["ratio_outside"].item() == 1


def test_metrics_carry_no_gradient():
    logprobs, batch = random_batch()
    _, metrics = policy_loss(GRPO)(logprobs.requires_grad_(), batch)
    assert metrics
    assert not any(value.requires_grad for value in metrics.values())


@pytest.mark.parametrize(
    ("correction", "weights"),
    [("none", [1, 1, 1]), ("token", [0.5, 3, 0.25]), ("prefix", [0.5, 1.5, 0.375]), ("sequence", [0.375] * 3)],
)
def test_each_correction_weighs_by_its_product(correction, weights):
    """Two rows, the second shorter; what lies in its padding is not looked at."""
    ratios = [[0.5, 3.0, 0.25], [2.0, math.nan, math.nan]]
    behaviour = [[-math.log(r) for r in row] for row in ratios]
    batch = batch_of([[0.0] * 3] * 2, [[1.0] * 3] * 2, [[0.25] * 3, [0.25, 0, 0]], behaviour=behaviour)
    logprobs = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_loss(AlgorithmConfig(max_behaviour_ratio=10), correction)(logprobs, batch)
    loss.backward()
    second = 1.0 if correction == "none" else 2.0
    assert logprobs.grad.tolist() == [pytest.approx([-w / 4 for w in weights]), pytest.approx([-second / 4, 0, 0])]
    assert metrics["behaviour_square"].item() == pytest.approx((sum(w**2 for w in weights) + second**2) / 4)


def test_a_long_product_stays_finite():
    behaviour = [[-15.0] * 100]
    batch = batch_of([[0.0] * 100], [[1.0] * 100], [[0.01] * 100], behaviour=behaviour, dtype=torch.float32)
    loss, metrics = policy_loss(GRPO, "sequence")(torch.zeros(1, 100), batch)
    assert loss.item() == pytest.approx(-2.0)
    assert metrics["behaviour_capped"].item() == pytest.approx(1.0)
