"""The policy that is trained: Megatron-core."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class PolicyConfig:
    """Parallel layout, precision and optimizer."""

    tensor_parallel: int = bounded(1, at_least=1)
    """Tensor-parallel ranks, TP."""
    pipeline_parallel: int = bounded(1, at_least=1)
    """Pipeline-parallel ranks, PP. Data-parallel ranks are what is left of the world size."""
    dtype: str = bounded("bf16", choices=("bf16", "fp32"))
    """Compute precision, `bf16` (with fp32 master weights) or `fp32`; in files and on the command line also `auto`:
    bf16 where the hardware multiplies it, else fp32."""
    hf_mapping: str = bounded("own", choices=("own", "bridge"))
    """Who converts Hugging Face weights to Megatron's and back: `own` (our table) or `bridge` (NVIDIA's
    Megatron-Bridge, where it is installed). The weights, and so checkpoints, are the same."""
    micro_batch_tokens: int = bounded(4096, at_least=1)
    """Most padded tokens in one micro-batch. Rows of one prompt lie together; where attention is ours (not Transformer
    Engine's) their prompt is computed once and padding not at all."""
    recompute: bool = False
    """Recompute activations in the backward pass (saves memory, costs a forward)."""
    lr: float = bounded(1e-6, at_least=0)
    """Peak learning rate."""
    lr_schedule: str = bounded("constant", choices=("constant", "cosine", "linear"))
    """`constant`, `cosine` or `linear`, after the warm-up; the schedules are NeMo's (nemo.core.optim)."""
    warmup_steps: int = bounded(0, at_least=0)
    """Linear warm-up, in optimizer updates."""
    min_lr: float = bounded(0.0, at_least=0)
    """Floor of a decaying schedule."""
    weight_decay: float = bounded(0.0, at_least=0)
    """AdamW weight decay."""
    betas: tuple[float, float] = bounded((0.9, 0.999), at_least=0, below=1)
    """AdamW betas."""
    eps: float = bounded(1e-8, above=0)
    """AdamW epsilon."""
    clip_grad: float = bounded(1.0, at_least=0)
    """Global gradient-norm bound over the model-parallel group; 0 = none."""
