"""Which drafters there are: DrafterConfig -> vLLM's speculative_config, and who learns from finished rollouts.

Two halves, both called by the engine. `speculative_config` runs before the engine starts and touches no vLLM.
`configure` and `observe` run in the process that holds the model runner (every worker, through collective_rpc or
directly where the engine is in-process): vLLM builds a `custom_class` proposer from a class path alone, so what it
needs to know is kept here, one drafter a process.

A new drafter is one file and one line in `DRAFTERS`; a method that is not there is passed to vLLM as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.speculation.history import HistoryIndex
from nemo_specrl.types import Rollout

LOSSLESS_SAMPLERS = ("standard", "block")
"""Verifiers of vLLM that keep the sampling law. An allowlist: newer versions add lossy ones (0.33: `fly`)."""


def _history(config: DrafterConfig) -> dict[str, Any]:
    return {"method": "custom_class", "model": "nemo_specrl.rollout.vllm.history_proposer.HistoryProposer"}


DRAFTERS: dict[str, Callable[[DrafterConfig], dict[str, Any]]] = {
    "history": _history,
}
"""Our names -> the keys of speculative_config that they stand for."""


def speculative_config(config: DrafterConfig) -> dict[str, Any] | None:
    """vLLM's speculative_config of a drafter; None where it is off.

    Raises ValueError for a verifier that is not known to be lossless, unless `allow_lossy`: whether it was named by
    `rejection_sample_method` or slipped in through `speculative_config`.
    """
    if config.method == "off":
        return None
    keys = DRAFTERS.get(config.method, lambda c: {"method": c.method})(config)
    merged = {
        "num_speculative_tokens": config.num_draft_tokens,
        "rejection_sample_method": config.rejection_sample_method,
        **keys,
        **config.speculative_config,
    }
    sampler = merged["rejection_sample_method"]
    synthetic = sorted(key for key in merged if key.startswith("synthetic_"))
    if not config.allow_lossy and (sampler not in LOSSLESS_SAMPLERS or synthetic):
        what = f"rejection_sample_method={sampler!r}" if sampler not in LOSSLESS_SAMPLERS else ", ".join(synthetic)
        raise ValueError(
            f"drafter: {what} does not keep the policy's sampling law. Use one of {', '.join(LOSSLESS_SAMPLERS)}, "
            "or set drafter.allow_lossy=true, which is stamped on the run."
        )
    return merged


_config = DrafterConfig()
_index = HistoryIndex()


def configure(config: DrafterConfig) -> None:
    """Set this process's drafter, and forget what it has learnt. May be called before or after vLLM has built the
    proposer; called again with the same configuration it changes nothing."""
    global _config, _index
    if config != _config:
        _config, _index = config, HistoryIndex(window=config.window)


def observe(rollouts: Sequence[Rollout]) -> None:
    """Learn from finished rollouts of this process's policy; nothing to do for drafters without a memory."""
    if _config.method == "history":
        _index.observe(rollouts)


def active() -> tuple[DrafterConfig, HistoryIndex]:
    """This process's drafter: its configuration and its history."""
    return _config, _index
