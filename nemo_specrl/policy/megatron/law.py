"""The sampling law, vocabulary-parallel: the softmax of logits at a temperature, truncated as the engine does.

vLLM's order: divide by the temperature, keep the k most likely tokens, then the nucleus of what is left; the most
likely token always stays. Truncation needs the whole vocabulary; without it only sums cross ranks.

Shapes: N positions, V vocabulary, v this rank's share of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nemo_specrl.config import bounds
from nemo_specrl.config.engine import SamplingConfig

_SLICE = 1 << 22
"""Logits turned to fp32 at a time: bounds the temporaries at 16 MiB each, which a CPU's cache likes, too."""


@dataclass(frozen=True)
class Law:
    """How logits of this rank's share of the vocabulary become log-probabilities."""

    vocab_size: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    tp: int = 1
    tp_rank: int = 0
    group: Any = None
    """The tensor-parallel process group; unused with tp=1."""

    @classmethod
    def of(cls, sampling: SamplingConfig, vocab_size: int, tp: int = 1, tp_rank: int = 0, group: Any = None) -> Law:
        """Raises ValueError when the sampling options are no law."""
        bounds.check(sampling, "sampling")
        return cls(vocab_size, sampling.temperature, sampling.top_p, sampling.top_k, tp, tp_rank, group)

    @property
    def truncates(self) -> bool:
        return self.top_p < 1 or 0 < self.top_k < self.vocab_size

    @property
    def start(self) -> int:
        """The first token id of this rank's share."""
        return self.tp_rank * (-(-self.vocab_size // self.tp))

    @property
    def width(self) -> int:
        """Token ids in this rank's share, without padding."""
        return min(-(-self.vocab_size // self.tp), max(0, self.vocab_size - self.start))


def truncation_mask(scaled: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """[N, V] logits divided by the temperature -> [N, V] bool, True for the tokens that keep mass. Ties at the k-th
    place all stay, as in vLLM."""
    keep = torch.ones_like(scaled, dtype=torch.bool)
    if 0 < top_k < scaled.shape[-1]:
        keep = scaled >= scaled.topk(top_k, dim=-1).values[..., -1:]
    if top_p < 1:
        ascending, order = scaled.masked_fill(~keep, -torch.inf).sort(dim=-1)
        outside = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        outside[..., -1] = False
        keep = keep & ~torch.zeros_like(keep).scatter_(-1, order, outside)
    return keep


def score(logits: torch.Tensor, targets: torch.Tensor, law: Law) -> tuple[torch.Tensor, torch.Tensor]:
    """([N, v (padded)] logits, [N] token ids) -> fp32 ([N] log-probabilities, differentiable, [N] entropies in nats).

    A token that the truncation removes has log-probability -inf (and gradient 0)."""
    logprobs, entropy = _Score.apply(logits, targets, law)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def log_probs(logits: torch.Tensor, law: Law) -> torch.Tensor:
    """[N, v (padded)] logits -> [N, V] fp32 log-probabilities of the whole vocabulary, on every rank; no gradient."""
    whole = _gather_vocabulary(logits.detach(), law).float() / law.temperature
    if law.truncates:
        whole = whole.masked_fill(~truncation_mask(whole, law.top_k, law.top_p), -torch.inf)
    return whole.log_softmax(dim=-1)


def _gather_vocabulary(logits: torch.Tensor, law: Law) -> torch.Tensor:
    if law.tp == 1:
        return logits[:, : law.vocab_size]
    parts = [torch.empty_like(logits) for _ in range(law.tp)]
    dist.all_gather(parts, logits.contiguous(), group=law.group)
    return torch.cat(parts, dim=-1)[:, : law.vocab_size]


def _slices(logits: torch.Tensor) -> list[slice]:
    rows = max(1, _SLICE // logits.shape[-1])
    return [slice(i, i + rows) for i in range(0, logits.shape[0], rows)]


class _Score(torch.autograd.Function):
    """Keeps the logits in their own dtype for the backward pass; fp32 exists only a slice at a time."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, law: Law) -> tuple[torch.Tensor, torch.Tensor]:
        keep: torch.Tensor | None = None
        if law.truncates:
            masks = []
            for rows in _slices(logits):
                whole = _gather_vocabulary(logits[rows], law).float() / law.temperature
                masks.append(truncation_mask(whole, law.top_k, law.top_p)[:, law.start : law.start + law.width])
            keep = torch.cat(masks) if masks else None
        log_z, top, expectation, hit = (torch.empty(targets.shape, device=logits.device) for _ in range(4))
        local = targets - law.start
        mine = (local >= 0) & (local < law.width)
        local = local.clamp(0, law.width - 1)
        kept = mine if keep is None else mine & keep.gather(1, local[:, None])[:, 0]
        for rows in _slices(logits):
            z = logits[rows, : law.width].to(torch.float32, copy=True).div_(law.temperature)
            maximum = z.amax(dim=-1)
            if law.tp > 1:
                dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=law.group)
            e = z.sub(maximum[:, None]).exp_()
            if keep is not None:
                e.mul_(keep[rows])
            hit[rows] = z.gather(1, local[rows, None])[:, 0].where(kept[rows], torch.zeros(()).to(z))
            expectation[rows] = torch.linalg.vecdot(e, z)
            log_z[rows] = e.sum(dim=-1)
            top[rows] = maximum
        found = kept.float()
        if law.tp > 1:
            sums = torch.stack([log_z, expectation, hit, found])
            dist.all_reduce(sums, group=law.group)
            log_z, expectation, hit, found = sums
        expectation = expectation / log_z
        log_z = log_z.log() + top
        ctx.save_for_backward(logits, local, mine, log_z, keep if keep is not None else logits.new_empty(0))
        ctx.law, ctx.found = law, found > 0
        entropy = log_z - expectation
        ctx.mark_non_differentiable(entropy)
        return torch.where(ctx.found, hit - log_z, -torch.inf), entropy

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _entropy: Any) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        logits, local, mine, log_z, keep = ctx.saved_tensors
        law: Law = ctx.law
        grad = torch.where(ctx.found, grad, 0.0) / law.temperature
        out = torch.zeros_like(logits) if law.width < logits.shape[1] else torch.empty_like(logits)
        for rows in _slices(logits):
            p = (
                logits[rows, : law.width]
                .to(torch.float32, copy=True)
                .div_(law.temperature)
                .sub_(log_z[rows, None])
                .exp_()
            )
            if law.truncates:
                p.mul_(keep[rows])
            p.mul_(-grad[rows, None])
            p.scatter_add_(1, local[rows, None], (grad[rows] * mine[rows])[:, None])
            out[rows, : law.width] = p
        return out, None, None
