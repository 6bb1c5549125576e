"""This process's drafter: what it is configured to do, and what it has learnt from finished rollouts.

vLLM builds a `custom_class` proposer from a class path alone, inside the process that holds the model runner. So what
the proposer needs lies here, one drafter a process: the engine calls `configure` (before or after vLLM is built) and
`observe`, the proposer reads `active`, a weight update `shortlist`. Imports no vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.rollout.vllm.shortlist import TokenCounts
from nemo_specrl.speculation.history import HistoryIndex
from nemo_specrl.types import IntArray, Rollout

_active = (DrafterConfig(), HistoryIndex())
_counts = TokenCounts()


def configure(config: DrafterConfig) -> None:
    """Set the drafter. Another configuration than before forgets what was learnt; the same one changes nothing."""
    global _active, _counts
    if config != _active[0]:
        _active = (config, HistoryIndex(window=config.window))
        _counts = TokenCounts()


def observe(rollouts: Sequence[Rollout]) -> None:
    """Learn from finished rollouts; nothing to do for drafters without a memory. May be called from any thread, also
    while rows are being drafted for: siblings that finish early help the others."""
    config, index = _active
    if config.method == "history":
        index.observe(rollouts)
    elif config.method == "mtp":
        _counts.observe(rollouts)


def shortlist(vocab_size: int) -> IntArray | None:
    """[L] ids of the tokens that a draft head shall choose among; None = all of them."""
    config, _ = _active
    size = config.head.vocabulary if config.method == "mtp" else 0
    return _counts.most_frequent(size, vocab_size) if 0 < size < vocab_size else None


def active() -> tuple[DrafterConfig, HistoryIndex]:
    """The configuration and the history; a reader that keeps them is told of a new configuration by their identity."""
    return _active
