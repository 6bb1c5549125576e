"""AdamW with fp32 masters: Megatron's own on GPUs; on a CPU torch's, because Megatron's clipping asserts CUDA tensors.

Both read the fp32 `main_grad` that Megatron's DistributedDataParallel accumulates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.policy.megatron.parallel import ParallelLayout


class Optimizer(Protocol):
    """One update from the accumulated gradients."""

    def step(self, lr: float) -> float:
        """Clip and update; returns the gradient norm before clipping. Where it is not finite nothing is touched."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def build_optimizer(model: Any, config: PolicyConfig, layout: ParallelLayout) -> Optimizer:
    """`model` is wrapped in Megatron's DistributedDataParallel."""
    return GpuOptimizer(model, config) if layout.device.type == "cuda" else MasterAdamW(model.parameters(), config)


class MasterAdamW:
    """torch AdamW on fp32 masters, for the policy on a CPU and for the draft head anywhere; in bf16 a parameter is its
    master, rounded (`cpu.fast_bf16` decides what dtype the rounded number is stored in)."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], config: PolicyConfig, group: Any = None) -> None:
        """`group`: the ranks that hold the other parts of these parameters; by default the model-parallel group."""
        self.group = group or parallel_state.get_model_parallel_group()
        self.parameters = list(parameters)
        self.rounds = config.dtype == "bf16"
        self.masters = [
            torch.nn.Parameter(p.detach().to(torch.float32, copy=True)) if self.rounds else p for p in self.parameters
        ]
        self.clip = config.clip_grad
        self.adam = torch.optim.AdamW(
            self.masters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
        )

    def step(self, lr: float) -> float:
        grads = [p.main_grad for p in self.parameters]  # type: ignore[attr-defined]
        norm = self._norm(grads)
        if not math.isfinite(norm):
            return norm
        if self.clip > 0 and norm > self.clip:
            torch._foreach_mul_(grads, self.clip / (norm + 1e-6))
        for master, grad in zip(self.masters, grads, strict=True):
            master.grad = grad
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None
            if self.rounds:
                parameter.data.copy_(master.data.bfloat16())
        return norm

    def reload(self) -> None:
        """The parameters were set from outside: the masters follow."""
        if self.rounds:
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                master.data.copy_(parameter.data)

    def _norm(self, grads: list[torch.Tensor]) -> float:
        """Global over the group; what several ranks hold alike is counted once."""
        counted = [g for g, p in zip(grads, self.parameters, strict=True) if counts(p)]
        square = torch.zeros([], dtype=torch.float64, device=grads[0].device)
        for norm in torch._foreach_norm(counted) if counted else []:
            square += norm.double() ** 2
        dist.all_reduce(square, group=self.group)
        return float(square.sqrt())

    def state_dict(self) -> dict[str, Any]:
        return {"masters": [m.detach() for m in self.masters], "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for parameter, master, saved in zip(self.parameters, self.masters, state["masters"], strict=True):
                master.copy_(saved)
                if self.rounds:
                    parameter.copy_(saved.bfloat16())
        self.adam.load_state_dict(state["adam"])


class GpuOptimizer:
    """Megatron's mixed-precision optimizer."""

    def __init__(self, model: Any, config: PolicyConfig) -> None:
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        self.clip = config.clip_grad
        self.megatron = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=config.lr,
                weight_decay=config.weight_decay,
                adam_beta1=config.betas[0],
                adam_beta2=config.betas[1],
                adam_eps=config.eps,
                bf16=config.dtype == "bf16",
                params_dtype=torch.bfloat16 if config.dtype == "bf16" else torch.float32,
                clip_grad=config.clip_grad,
            ),
            [model],
        )

    def step(self, lr: float) -> float:
        for group in self.megatron.param_groups:
            group["lr"] = lr * group.get("lr_mult", 1.0)
        self.megatron.prepare_grads()
        norm = float(self.megatron.get_grad_norm())
        if not math.isfinite(norm):
            return norm
        if self.clip > 0:
            self.megatron.clip_grad_norm(self.clip)
        self.megatron.step_with_ready_grads()
        return norm

    def state_dict(self) -> dict[str, Any]:
        return self.megatron.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.megatron.load_state_dict(state)
        self.megatron.reload_model_params()


def counts(parameter: torch.nn.Parameter) -> bool:
    """Whether this rank's copy enters the global gradient norm: not the second holder of a tied embedding, and a
    parameter that tensor parallelism replicates only on the group's first rank."""
    if getattr(parameter, "shared", False):
        return False
    split = getattr(parameter, "tensor_model_parallel", False)
    return bool(split) or parallel_state.get_tensor_model_parallel_rank() == 0
