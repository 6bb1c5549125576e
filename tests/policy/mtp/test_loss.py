"""The head's losses against autograd on their closed forms, for every law, chunking and lump."""

from __future__ import annotations

import pytest
import torch

from nemo_specrl.policy.megatron.law import Law, truncation_mask
from nemo_specrl.policy.mtp import loss
from nemo_specrl.policy.mtp.loss import agreement, distil

V, H, N = 23, 8, 13


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(3)
    student, teacher = (torch.randn(N, H, generator=draw, dtype=dtype) for _ in range(2))
    head = torch.randn(V + 1, H, generator=draw, dtype=dtype)  # one row of padding, as TP makes it
    return student.requires_grad_(), teacher, head, torch.rand(N, generator=draw)


def closed_form(
    student: torch.Tensor,
    teacher: torch.Tensor,
    head: torch.Tensor,
    weights: torch.Tensor,
    law: Law,
    topk: int = 0,
    kind: str = "kl",
) -> torch.Tensor:
    """Either loss on whole vocabularies, written out; the lump is one more symbol."""
    z = (teacher @ head[:V].T).detach() / law.temperature
    if law.truncates:
        z = z.masked_fill(~truncation_mask(z, law.top_k, law.top_p), -torch.inf)
    p, log_q = z.softmax(-1), (student @ head[:V].T / law.temperature).log_softmax(-1)
    if topk:
        best = p.topk(topk, dim=-1).indices
        rest = torch.ones_like(p, dtype=torch.bool).scatter(1, best, False)
        lump_q = log_q.masked_fill(~rest, -torch.inf).logsumexp(-1, keepdim=True)
        log_q = torch.cat([log_q.gather(1, best), lump_q], -1)
        p = torch.cat([p.gather(1, best), (p * rest).sum(-1, keepdim=True)], -1)
    if kind == "acceptance":
        return (weights * -torch.minimum(p, log_q.exp()).sum(-1).log()).sum()
    return (weights * (torch.xlogy(p, p) - p * torch.where(p > 0, log_q, 0.0)).sum(-1)).sum()


LAWS = [Law(V), Law(V, temperature=0.6), Law(V, temperature=1.3, top_p=0.7), Law(V, top_k=5)]


@pytest.mark.parametrize("kind", ["kl", "acceptance"])
@pytest.mark.parametrize("topk", [0, 1, 6, V, 40])
@pytest.mark.parametrize("law", LAWS, ids=["plain", "cold", "nucleus", "top-k"])
def test_value_and_gradient_are_those_of_the_closed_form(law: Law, topk: int, kind: str) -> None:
    student, teacher, head, weights = inputs()
    found, _ = distil(student, teacher, head, weights, law, topk, kind)
    (3 * found).backward()
    assert student.grad is not None
    other = student.detach().clone().requires_grad_()
    expected = closed_form(other, teacher, head, weights, law, topk if topk < V else 0, kind)
    (3 * expected).backward()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(student.grad, other.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["kl", "acceptance"])
def test_the_gradient_is_the_finite_difference(kind: str) -> None:
    student, teacher, head, weights = inputs()
    law = Law(V, temperature=0.8)
    distil(student, teacher, head, weights, law, 4, kind)[0].backward()
    assert student.grad is not None
    direction = torch.randn(N, H, generator=torch.Generator().manual_seed(1))
    step = 1e-3
    ahead, behind = (
        distil(student.detach() + s * direction, teacher, head, weights, law, 4, kind)[0] for s in (step, -step)
    )
    slope = float((student.grad * direction).sum())
    assert float(ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-3)


@pytest.mark.parametrize("kind", ["kl", "acceptance"])
@pytest.mark.parametrize("topk", [0, 6])
def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch, topk: int, kind: str) -> None:
    results = []
    for chunk in (1, 3 * (V + 1), 1 << 23):
        monkeypatch.setattr(loss, "CHUNK", chunk)
        student, teacher, head, weights = inputs()
        value, _ = distil(student, teacher, head, weights, Law(V), topk, kind)
        value.backward()
        results.append((value.detach(), student.grad))
    for value, grad in results[1:]:
        torch.testing.assert_close(value, results[0][0], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(grad, results[0][1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["kl", "acceptance"])
def test_a_head_that_agrees_has_neither_loss_nor_gradient(kind: str) -> None:
    student, _, head, weights = inputs()
    value, agreed = distil(student, student.detach(), head, weights, Law(V), loss=kind)
    value.backward()
    assert float(value.detach()) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(agreed[:, [0, 2]], torch.ones(N, 2))
    assert student.grad is not None
    assert float(student.grad.abs().max()) < 1e-6


def test_the_loss_of_acceptance_is_minus_its_log() -> None:
    student, teacher, head, weights = inputs()
    value, agreed = distil(student, teacher, head, weights, Law(V), loss="acceptance")
    torch.testing.assert_close(value, -(weights * agreed[:, 0].log()).sum())


def test_a_head_that_is_too_small_gives_up_what_costs_it_less_of_its_loss() -> None:
    """One free number x, logits (x - 1, 0, -2x - 1), cannot make the policy's law. KL wants none of its tokens to be
    unlikely; acceptance wants the overlap, whatever becomes of the last token."""
    teacher = torch.tensor([[0.35, 0.60, 0.05]]).log()
    found = {}
    for kind in ("kl", "acceptance"):
        tried = []
        for x in torch.linspace(-3, 3, 121).tolist():
            student = torch.tensor([[x - 1, 0.0, -2 * x - 1]])
            value, agreed = distil(student, teacher, torch.eye(3), torch.ones(1), Law(3), loss=kind)
            tried.append((float(value), float(agreed[0, 0])))
        found[kind] = min(tried)[1], max(overlap for _, overlap in tried)
    assert found["kl"][0] < found["kl"][1] - 0.005


@pytest.mark.parametrize("kind", ["kl", "acceptance"])
@pytest.mark.parametrize("topk", [0, 2])
@pytest.mark.parametrize("apart", [5.0, 40.0, 60.0, 100.0, 300.0])
def test_laws_that_hardly_overlap_have_the_gradient_of_float64(apart: float, topk: int, kind: str) -> None:
    """Policy and head each sure of another token, an overlap of e^-apart, down to far below fp32's e^-87."""
    noise = torch.randn(2, 4, V, generator=torch.Generator().manual_seed(2))
    student, teacher = noise[0], noise[1]
    student[:, 3] += apart
    teacher[:, 7] += apart
    law, weights = Law(V), torch.ones(4)
    ours = student.clone().requires_grad_()
    found, _ = distil(ours, teacher, torch.eye(V), weights, law, topk, kind)
    found.backward()
    exact = student.double().requires_grad_()
    expected = closed_form(exact, teacher.double(), torch.eye(V).double(), weights.double(), law, topk, kind)
    expected.backward()
    assert ours.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-3, atol=1e-4)
    assert float(ours.grad[:, 7].mean()) < -0.01, "the head learns to draft what the policy wants"


def test_only_the_student_gets_a_gradient() -> None:
    student, teacher, head, weights = inputs()
    teacher.requires_grad_()
    head.requires_grad_()
    distil(student, teacher, head, weights, Law(V))[0].backward()
    assert teacher.grad is None
    assert head.grad is None


def test_no_events_cost_nothing() -> None:
    student, teacher, head, weights = (x[:0] if i != 2 else x for i, x in enumerate(inputs()))
    value, agreed = distil(student, teacher, head, weights, Law(V))
    value.backward()
    assert float(value.detach()) == 0
    assert agreed.shape == (0, 3)
    assert agreement(student, teacher, head, Law(V)).shape == (0, 3)


@pytest.mark.parametrize("law", LAWS, ids=["plain", "cold", "nucleus", "top-k"])
def test_agreement_is_the_overlap_of_the_two_laws(law: Law) -> None:
    student, teacher, head, _ = inputs()
    z = teacher @ head[:V].T / law.temperature
    if law.truncates:
        z = z.masked_fill(~truncation_mask(z, law.top_k, law.top_p), -torch.inf)
    p, q = z.softmax(-1), (student.detach() @ head[:V].T / law.temperature).softmax(-1)
    found = agreement(student, teacher, head, law)
    torch.testing.assert_close(found[:, 0], 1 - 0.5 * (p - q).abs().sum(-1))  # 1 - total variation
    torch.testing.assert_close(found[:, 1], p[torch.arange(N), q.argmax(-1)])
    assert torch.equal(found[:, 2], (p.argmax(-1) == q.argmax(-1)).float())
