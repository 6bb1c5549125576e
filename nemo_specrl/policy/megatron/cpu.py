"""Routes Megatron-core to the CPU. The only module that patches Megatron, and active only where there is no GPU.

Written for megatron-core 0.16.1, which allocates on `torch.cuda.current_device()` and `device="cuda"` and synchronises
CUDA in its schedules, pipeline communication, rotary embedding, gradient buffers and tensor-parallel mappings. Each of
those modules gets a stand-in for its global `torch` that answers these few calls for the CPU and hands on everything
else; torch itself stays untouched. Activation recomputation saves CUDA generator states, of which there are none here.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import Any

import torch

WRITTEN_FOR = "0.16.1"

_ON_CUDA = (
    "megatron.core.distributed.param_and_grad_buffer",
    "megatron.core.models.common.embeddings.rotary_pos_embedding",
    "megatron.core.pipeline_parallel.p2p_communication",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.tensor_parallel.layers",
    "megatron.core.tensor_parallel.mappings",
)
_RANDOM = "megatron.core.tensor_parallel.random"


class _CpuCuda:
    """What `torch.cuda` says to Megatron."""

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def synchronize(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class _CpuTorch:
    """What `torch` is to Megatron."""

    cuda = _CpuCuda()

    def zeros(self, *size: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _saved_states() -> tuple[torch.Tensor]:
    return (torch.get_rng_state(),)


def _restore_states(state: torch.Tensor) -> None:
    torch.set_rng_state(state)


def fast_bf16() -> bool:
    """Whether this CPU has bf16 matrix kernels. Without them (AVX2 only) torch multiplies bf16 5 to 30 times slower
    than fp32."""
    return bool(torch.backends.mkldnn.is_available()) and bool(  # type: ignore[no-untyped-call]
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _replace(module_name: str, attribute: str, value: Any) -> None:
    module = importlib.import_module(module_name)
    if not hasattr(module, attribute):
        raise RuntimeError(
            f"megatron-core {version('megatron-core')} has no {module_name}.{attribute}, which the CPU routing of "
            f"nemo-specrl replaces (written for {WRITTEN_FOR}): install megatron-core=={WRITTEN_FOR}, or train on a GPU"
        )
    setattr(module, attribute, value)


def route_to_cpu() -> None:
    """Make Megatron run on the CPU in this process; may be called again.

    Raises RuntimeError when Megatron no longer has what is replaced here."""
    assert not torch.cuda.is_available(), "CPU routing is for machines without a GPU"
    for module_name in _ON_CUDA:
        _replace(module_name, "torch", _CpuTorch())
    _replace(_RANDOM, "_get_all_rng_states", _saved_states)
    _replace(_RANDOM, "_set_all_rng_states", _restore_states)
