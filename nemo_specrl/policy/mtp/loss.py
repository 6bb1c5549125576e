"""KL(policy || head), or the negative log of the chance that a draft is accepted, through the shared, frozen LM head,
a chunk of positions at a time, vocabulary-parallel.

Teacher: the policy's sampling law (temperature, truncation) at the same event, because that is what the engine
verifies drafts against; at temperature 1 without truncation it is the plain softmax. Student: the softmax of the
head's logits at the same temperature, which is what sampled drafts are drawn from; a truncated student would get no
gradient for what it misses. The LM head is frozen and the loss is linear in what follows, so the gradient for the
hidden states is computed on the spot and no logits outlive their chunk. Ours; the second loss is the negative log
acceptance of LK Losses (Samarin et al., arXiv 2602.23881): both losses have the same optimum, and a head too small to
reach it gives up what costs it less acceptance.

Shapes: N events, H hidden, V vocabulary, v this rank's share of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from nemo_specrl.policy.megatron.law import Law, log_probs

if TYPE_CHECKING:
    from jaxtyping import Float

CHUNK = 1 << 23
"""Logits of one rank that exist at once, per law."""
Comparison = Callable[[torch.Tensor, torch.Tensor, Law, int], tuple[torch.Tensor, torch.Tensor]]
"""(log-laws of policy and head [n, v], law, topk) -> (losses [n], their derivatives by the head's logits [n, v])."""


def distil(
    student: Float[torch.Tensor, "N H"],
    teacher: Float[torch.Tensor, "N H"],
    head: Float[torch.Tensor, "v_padded H"],
    weights: Float[torch.Tensor, " N"],
    law: Law,
    topk: int = 0,
    loss: str = "kl",
) -> tuple[Float[torch.Tensor, ""], Float[torch.Tensor, "N 3"]]:
    """(the weighted sum of losses, a scalar with gradient for `student` only; [N, 3] what `agreement` says).

    `student`, `teacher` [N, H] final hidden states; `head` [v (padded), H] the LM head's weight; `weights` [N].
    `topk` > 0 compares the teacher's k likeliest tokens (with ties) one by one and all others as one lump. `loss`:
    drafter.head.loss."""
    compare = {"kl": _kl, "acceptance": _acceptance}[loss]
    total, agreed = _Distil.apply(student, teacher.detach(), head.detach(), weights, law, topk, compare)  # type: ignore[no-untyped-call]
    return total, agreed


def agreement(
    student: Float[torch.Tensor, "N H"],
    teacher: Float[torch.Tensor, "N H"],
    head: Float[torch.Tensor, "v_padded H"],
    law: Law,
) -> Float[torch.Tensor, "N 3"]:
    """[N, 3] fp32, no gradient: the chance that the verifier accepts a draft drawn from the head's law,
    sum_x min(p, q) (Leviathan et al., arXiv 2211.17192); that of the head's likeliest token, p(argmax q); and whether
    the likeliest tokens agree."""
    parts = [torch.empty(0, 3, device=student.device)]
    with torch.no_grad():
        for rows in _chunks(len(student), head):
            log_q = _log_softmax(student[rows] @ head[: law.width].T, law)
            parts.append(_agreement(_teacher(teacher[rows], head, law), log_q, law))
    return torch.cat(parts)


def _chunks(n: int, head: torch.Tensor) -> list[slice]:
    size = max(1, CHUNK // head.shape[0])
    return [slice(i, i + size) for i in range(0, n, size)]


class _Distil(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        student: torch.Tensor,
        teacher: torch.Tensor,
        head: torch.Tensor,
        weights: torch.Tensor,
        law: Law,
        topk: int,
        compare: Comparison,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        agreed = torch.empty(len(student), 3, device=student.device)
        gradient = torch.empty_like(student)
        total = torch.zeros((), dtype=torch.float32, device=student.device)
        own = head[: law.width]
        for rows in _chunks(len(student), head):
            log_q = _log_softmax(student[rows] @ own.T, law)
            log_p = _teacher(teacher[rows], head, law)
            agreed[rows] = _agreement(log_p, log_q, law)
            value, difference = compare(log_p, log_q, law, topk)
            total += (weights[rows] * value).sum()
            step = difference.mul_(weights[rows, None] / law.temperature).to(own.dtype) @ own
            _sum(step, law)
            gradient[rows] = step
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(agreed)
        return total, agreed

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _agreed: Any) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return gradient * grad.to(gradient.dtype), None, None, None, None, None, None


def _kl(
    log_p: Float[torch.Tensor, "n v"], log_q: Float[torch.Tensor, "n v"], law: Law, topk: int
) -> tuple[Float[torch.Tensor, " n"], Float[torch.Tensor, "n v"]]:
    """[n, v] log-laws -> ([n] KL(p || q), [n, v] its derivative by the student's logits at temperature 1).

    Both laws restricted to the top-k set S and the lump L of the rest: KL = sum_S p log(p/q) + p(L) log(p(L)/q(L)); its
    derivative is q - r, where r = p on S and p(L) q / q(L) off it. With every token in S that is q - p."""
    p, q = log_p.exp(), log_q.exp()
    terms = torch.where(p > 0, p * (log_p - log_q), 0.0)
    if not 0 < topk < law.vocab_size:
        return _sum(terms.sum(dim=-1), law), q - p
    kept = log_p >= _kth(log_p, law, topk)
    on = _sum(terms.mul(kept).sum(-1), law)
    p_lump, q_lump = (_log_sum(x.masked_fill(kept, -torch.inf), law) for x in (log_p, log_q))
    lump = torch.where(p_lump > -torch.inf, p_lump.exp() * (p_lump - q_lump), 0.0)
    return on + lump, q - torch.where(kept, p, _exp(log_q, p_lump - q_lump))


def _acceptance(
    log_p: Float[torch.Tensor, "n v"], log_q: Float[torch.Tensor, "n v"], law: Law, topk: int
) -> tuple[Float[torch.Tensor, " n"], Float[torch.Tensor, "n v"]]:
    """[n, v] log-laws -> ([n] -log a with a = sum min(p, q), [n, v] its derivative by the student's logits at
    temperature 1).

    The derivative is q (c - m) / a, where m = 1 where the draft is too rare (q < p), else 0, and c = sum q m. With a
    lump L of the rest, a takes it as one symbol, min(p(L), q(L)), and m is the same for all of L. All in logs: where
    the laws hardly overlap, a and the rare q underflow, and their ratio is what there is to learn from."""
    short = log_q < log_p
    overlap = torch.minimum(log_p, log_q)
    if not 0 < topk < law.vocab_size:
        log_a = _log_sum(overlap, law)
    else:
        kept = log_p >= _kth(log_p, law, topk)
        p_lump, q_lump = (_log_sum(x.masked_fill(kept, -torch.inf), law) for x in (log_p, log_q))
        short = torch.where(kept, short, (q_lump < p_lump)[:, None])
        log_a = _log_sum(overlap.masked_fill_(~kept, -torch.inf), law)
        log_a = torch.logaddexp(log_a, torch.minimum(p_lump, q_lump))
    rare = log_q.masked_fill(~short, -torch.inf)
    log_c = _log_sum(rare, law)
    return -log_a, _exp(log_q, log_c - log_a) - _exp(rare, -log_a)


def _agreement(
    log_p: Float[torch.Tensor, "n v"], log_q: Float[torch.Tensor, "n v"], law: Law
) -> Float[torch.Tensor, "n 3"]:
    """[n, v] log-laws -> [n, 3], see `agreement`."""
    overlap = _sum(torch.minimum(log_p, log_q).exp().sum(dim=-1), law)
    top_q, best = log_q.max(dim=-1)
    top = torch.stack([top_q, log_p.gather(1, best[:, None])[:, 0], log_p.amax(dim=-1)])
    if law.tp > 1:
        parts = [torch.empty_like(top) for _ in range(law.tp)]
        dist.all_gather(parts, top, group=law.group)
        every = torch.stack(parts)  # [tp, 3, n]
        owner = every[:, 0].argmax(dim=0)
        top = torch.stack([every[:, 0].amax(0), every[:, 1].gather(0, owner[None])[0], every[:, 2].amax(0)])
    return torch.stack([overlap, top[1].exp(), (top[1] == top[2]).float()], dim=-1)


def _kth(log_p: Float[torch.Tensor, "n v"], law: Law, k: int) -> Float[torch.Tensor, "n 1"]:
    """[n, 1] the k-th largest over the whole vocabulary."""
    best = log_p.topk(min(k, log_p.shape[-1]), dim=-1).values
    if law.tp > 1:
        best = torch.nn.functional.pad(best, (0, k - best.shape[-1]), value=-torch.inf)
        parts = [torch.empty_like(best) for _ in range(law.tp)]
        dist.all_gather(parts, best.contiguous(), group=law.group)
        best = torch.cat(parts, dim=-1).topk(k, dim=-1).values
    return best[:, -1:]


def _teacher(
    hidden: Float[torch.Tensor, "n H"], head: Float[torch.Tensor, "v_padded H"], law: Law
) -> Float[torch.Tensor, "n v"]:
    """[n, H] -> [n, v] this rank's share of the sampling law, fp32 log-probabilities."""
    if law.truncates:
        return log_probs(hidden @ head.T, law)[:, law.start : law.start + law.width]
    return _log_softmax(hidden @ head[: law.width].T, law)


def _log_softmax(logits: Float[torch.Tensor, "n v"], law: Law) -> Float[torch.Tensor, "n v"]:
    """[n, v] logits -> [n, v] fp32 log-probabilities at the law's temperature, without truncation."""
    z = logits.float() / law.temperature
    if law.tp == 1:
        return z.log_softmax(dim=-1)
    top = z.amax(dim=-1, keepdim=True)
    dist.all_reduce(top, op=dist.ReduceOp.MAX, group=law.group)
    z = z - top
    return z - _sum(z.exp().sum(dim=-1, keepdim=True), law).log()


def _exp(log_q: Float[torch.Tensor, "n v"], shift: Float[torch.Tensor, " n"]) -> Float[torch.Tensor, "n v"]:
    """[n, v] exp(log_q + shift [n]); 0 where either is -inf. Where a lump is empty the shift is NaN, and unused."""
    return (log_q + shift[:, None]).exp_()


def _log_sum(logs: Float[torch.Tensor, "n v"], law: Law) -> Float[torch.Tensor, " n"]:
    """[n, v] -> [n] log of the sum of exp over the whole vocabulary; -inf where every entry is."""
    top = logs.amax(dim=-1)
    if law.tp > 1:
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=law.group)
    top = top.masked_fill(torch.isneginf(top), 0.0)
    return _sum((logs - top[:, None]).exp_().sum(dim=-1), law).log() + top


def _sum(values: torch.Tensor, law: Law) -> torch.Tensor:
    """Summed over the tensor-parallel group, in place."""
    if law.tp > 1:
        dist.all_reduce(values, group=law.group)
    return values
