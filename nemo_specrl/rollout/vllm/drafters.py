"""This process's drafter: what it is configured to do, and what it has learnt from finished rollouts.

vLLM builds a `custom_class` proposer from a class path alone, inside the process that holds the model runner. So what
the proposer needs lies here, one drafter a process: the engine calls `configure` (before or after vLLM is built) and
`observe`, the proposer reads `active`. Imports no vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.drafting import make_drafter
from nemo_specrl.speculation.history import HistoryIndex
from nemo_specrl.types import Rollout

_active = (DrafterConfig(), HistoryIndex())


def configure(config: DrafterConfig) -> None:
    """Set the drafter. Another configuration than before forgets what was learnt; the same one changes nothing."""
    global _active
    if config != _active[0]:
        _active = (config, HistoryIndex(window=config.window))


def observe(rollouts: Sequence[Rollout]) -> None:
    """Learn from finished rollouts; nothing to do for drafters without a memory. May be called from any thread, also
    while rows are being drafted for: siblings that finish early help the others."""
    config, index = _active
    if make_drafter(config).engine_learns:
        index.observe(rollouts)


def active() -> tuple[DrafterConfig, HistoryIndex]:
    """The configuration and the history; a reader that keeps them is told of a new configuration by their identity."""
    return _active
