"""What `dtype: auto` means on this machine, found without torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nemo_specrl.config.run import RunConfig


def multiplies_bf16(proc: Path = Path("/proc")) -> bool:
    """Whether bf16 matrices are multiplied in hardware: by an NVIDIA GPU, or a CPU with AVX512-BF16 or AMX.

    Elsewhere bf16 is emulated, 3 to 30 times slower than fp32 (measured on an AVX2 machine)."""
    if (proc / "driver" / "nvidia").exists():
        return True
    flags = (proc / "cpuinfo").read_text().split() if (proc / "cpuinfo").exists() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


def with_dtypes(run: RunConfig) -> RunConfig:
    """The run with `auto` replaced by `bf16` or `fp32`."""
    dtype = "bf16" if "auto" in (run.policy.dtype, run.engine.dtype) and multiplies_bf16() else "fp32"
    policy = replace(run.policy, dtype=dtype) if run.policy.dtype == "auto" else run.policy
    engine = replace(run.engine, dtype=dtype) if run.engine.dtype == "auto" else run.engine
    return replace(run, policy=policy, engine=engine)
