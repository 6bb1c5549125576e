"""The few collectives that the loop needs. Without torch.distributed each is the identity."""

from __future__ import annotations

import os
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Rank 0 owns the engine, the cache, the tracker and the terminal."""
    return rank() == 0


def is_further_node() -> bool:
    """The first rank of a node that rank 0 is not on. torchrun says which rank of a node this is."""
    return not is_main() and os.environ.get("LOCAL_RANK") == "0"


def barrier() -> None:
    """Wait until every rank is here."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


def broadcast(value: T) -> T:
    """Rank 0's value, on every rank. Other ranks' argument is ignored."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def raise_together(error: BaseException | None) -> None:
    """When any rank failed, fail on all of them: a rank that went on alone would wait for ever in a collective."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        if error is not None:
            raise error
        return
    texts: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    if failed := [(i, text) for i, text in enumerate(texts) if text is not None]:
        raise RuntimeError(f"rank {failed[0][0]} failed: {failed[0][1]}")
