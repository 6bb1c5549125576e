"""Micro-batches through the pipeline: hidden states of response positions, then the law's log-probabilities.

Prompt positions never meet the LM head. Shapes: S positions, B rows, N response tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel import get_forward_backward_func

from nemo_specrl.policy.megatron.batching import MicroBatch, unpack
from nemo_specrl.policy.megatron.law import Law, score

POSITIONS = 512
"""LM-head positions at a time: bounds the logits that exist at once where no gradient is wanted."""


def run_pipeline(
    model: DistributedDataParallel,
    batches: Sequence[MicroBatch],
    finish: Callable[[MicroBatch, torch.Tensor], Any],
    *,
    backward: bool,
) -> list[Any]:
    """Every micro-batch through all pipeline stages; `finish(batch, hidden [S, B, H])` gets the final norm's hidden
    states, on the last stage only.

    Without `backward` it returns anything; with it, (scalar loss, anything), and gradients accumulate.
    Returns what `finish` returned, one per micro-batch; empty on the other stages."""
    remaining = iter(batches)
    packs: bool = model.module.packs

    def forward_step(_iterator: Any, stage: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
        batch = next(remaining)
        inputs = (*batch.packed, batch.cells) if packs else (batch.input_ids, batch.position_ids, None)
        output = stage(*inputs)

        def finish_batch(hidden: torch.Tensor, non_loss_data: bool = False) -> Any:
            result = finish(batch, unpack(hidden, batch.cells) if packs else hidden)
            if non_loss_data:
                return result
            loss, report = result
            return loss, torch.zeros([], dtype=torch.int, device=loss.device), report

        return output, finish_batch

    b, s = batches[0].input_ids.shape
    results: list[Any] = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=None,
        model=[model],
        num_microbatches=len(batches),
        seq_length=s,
        micro_batch_size=b,
        forward_only=not backward,
        collect_non_loss_data=not backward,
    )
    return results


def at_responses(batch: MicroBatch, hidden: torch.Tensor) -> torch.Tensor:
    """[S, B, H] -> [N, H]: the hidden states that predict the response tokens, row by row."""
    return hidden.flatten(0, 1).index_select(0, batch.select)


def score_positions(model: Any, hidden: torch.Tensor, targets: torch.Tensor, law: Law) -> tuple[torch.Tensor, ...]:
    """([N, H] hidden states, [N] tokens) -> ([N] log-probabilities, [N] entropies), `POSITIONS` at a time."""
    parts = [
        score(model.logits(h), t, law)
        for h, t in zip(torch.split(hidden, POSITIONS), torch.split(targets, POSITIONS), strict=True)
    ]
    return tuple(torch.cat(p) for p in zip(*parts, strict=True))


def up_to(
    positions: int, chunks: Sequence[tuple[int, int, torch.Tensor]]
) -> Iterator[list[tuple[int, int, torch.Tensor]]]:
    """Consecutive chunks (row, first position, [t, H] states), so many at a time as `positions` allows: the LM head's
    weight is the model's largest, and is read once for all of them."""
    some: list[tuple[int, int, torch.Tensor]] = []
    total = 0
    for chunk in chunks:
        if some and total + len(chunk[2]) > positions:
            yield some
            some, total = [], 0
        some.append(chunk)
        total += len(chunk[2])
    if some:
        yield some
