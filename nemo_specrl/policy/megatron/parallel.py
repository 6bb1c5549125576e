"""Ranks and groups: torch.distributed and Megatron's parallel state, with torchrun or without."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nemo_specrl.config.policy import PolicyConfig


@dataclass(frozen=True)
class ParallelLayout:
    """Where this rank stands. World size = dp * pp * tp."""

    rank: int
    world: int
    tp: int
    tp_rank: int
    pp: int
    pp_rank: int
    dp: int
    dp_rank: int
    device: torch.device

    @property
    def first_stage(self) -> bool:
        """Holds the embedding."""
        return self.pp_rank == 0

    @property
    def last_stage(self) -> bool:
        """Holds the LM head."""
        return self.pp_rank == self.pp - 1

    @property
    def reports(self) -> bool:
        """One rank of each data-parallel replica speaks for it: the last stage's first tensor-parallel rank."""
        return self.last_stage and self.tp_rank == 0

    def gather(self, part: Any) -> list[Any]:
        """The picklable `part` of every rank, on every rank, in rank order."""
        if self.world == 1:
            return [part]
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, part)
        return parts

    def sum(self, reports: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, float]:
        """Sums over the micro-batches and replicas, by name, on every rank."""
        mine: dict[str, float] = {}
        for report in reports if self.reports else []:
            for key, value in report.items():
                mine[key] = mine.get(key, 0.0) + float(value)
        summed: dict[str, float] = {}
        for part in self.gather(mine):
            for key, value in part.items():
                summed[key] = summed.get(key, 0.0) + value
        return summed


def init_parallel(config: PolicyConfig) -> ParallelLayout:
    """Start torch.distributed and Megatron's parallel state, or join what this process has already started.

    Under torchrun the world is torchrun's; otherwise it is this one process, which needs no port.
    gloo on a CPU, NCCL on GPUs (one per rank). Raises ValueError when the layout does not fit the world."""
    from megatron.core import parallel_state

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        from nemo_specrl.policy.megatron.cpu import route_to_cpu

        route_to_cpu()
    world = dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    tp, pp = config.tensor_parallel, config.pipeline_parallel
    _check(tp, pp, world)
    if not dist.is_initialized():
        backend = "nccl" if cuda else "gloo"
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
    running = (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_pipeline_model_parallel_world_size(),
    )
    if running != (tp, pp):
        raise ValueError(
            f"this process already runs with tensor_parallel={running[0]}, pipeline_parallel={running[1]}: "
            f"start a new one for tensor_parallel={tp}, pipeline_parallel={pp}"
        )
    return ParallelLayout(
        rank=dist.get_rank(),
        world=world,
        tp=tp,
        tp_rank=parallel_state.get_tensor_model_parallel_rank(),
        pp=pp,
        pp_rank=parallel_state.get_pipeline_model_parallel_rank(),
        dp=parallel_state.get_data_parallel_world_size(),
        dp_rank=parallel_state.get_data_parallel_rank(),
        device=torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"),
    )


def _check(tp: int, pp: int, world: int) -> None:
    if tp < 1 or pp < 1:
        raise ValueError(f"policy.tensor_parallel ({tp}) and policy.pipeline_parallel ({pp}) must be at least 1")
    if world % (tp * pp):
        raise ValueError(
            f"policy.tensor_parallel={tp} x policy.pipeline_parallel={pp} needs a multiple of {tp * pp} ranks, "
            f"but there are {world}: start with `torchrun --nproc-per-node {tp * pp}`, or lower them"
        )
