"""The Drafter protocol: one way of drafting inside the engine, as everybody else sees it.

Nobody asks for its name to decide what to do: whoever needs to know asks the drafter.

Shapes: V vocabulary, L tokens on a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.contracts.companion import Companion, Lesson
from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.contracts.verdict import Verdict
from nemo_specrl.types import IntArray, Rollout

if TYPE_CHECKING:
    from nemo_specrl.config.run import RunConfig


class Drafter(Protocol):
    """Made from its configuration alone, in any process; the trainer's is the one that learns."""

    config: DrafterConfig

    @property
    def name(self) -> str:
        """drafter.method."""
        ...

    @property
    def drafts(self) -> bool:
        """Whether an engine that is given it speculates at all."""
        ...

    @property
    def has_head(self) -> bool:
        """Whether the engine must be started with the folder of a draft head."""
        ...

    @property
    def engine_learns(self) -> bool:
        """Whether the engine is to be shown finished rollouts (`Engine.observe`)."""
        ...

    @property
    def window(self) -> int:
        """Epochs of rollouts that the cache keeps for it, so that a resumed run can show them again."""
        ...

    # before anything is loaded
    def check(self) -> None:
        """ValueError, with the remedy, for settings that cannot be right: lossy without leave, said twice."""
        ...

    def faults(self, run: RunConfig) -> Iterator[str]:
        """What it cannot do in this run."""
        ...

    def check_model(self, folder: Path) -> None:
        """ValueError for what it needs of this model's folder, or of its own, and does not find."""
        ...

    def fits(self, slots: int, *, cpu: bool) -> Drafter:
        """Itself, or the drafter that an engine with so many slots had better be started with."""
        ...

    # the engine
    def speculative_config(self, served: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """vLLM's speculative_config; None = no speculation. `served`: how a head's folder wants to be driven."""
        ...

    # the trainer
    def join(self, policy: Any) -> Companion | None:
        """Let its companion ride this policy, where it has one; returns it. Collective."""
        ...

    def lessons(self, rows: int, step: int) -> Sequence[Lesson]:
        """What its companion learns from an update with so many rows."""
        ...

    def start(self, rollouts: Sequence[Rollout]) -> None:
        """What its companion needs of rollouts before it can be of use. Collective."""
        ...

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Finished rollouts of a step, on the rank that holds the engine."""
        ...

    def refit_extras(self, vocab_size: int) -> dict[str, IntArray]:
        """What travels to the engine beside the weights."""
        ...

    def verdict(self, spec: SpecCounters) -> Verdict | None:
        """What a step's counters say of it; None = nothing to say."""
        ...

    def save(self, folder: Path) -> None:
        """What it has learnt outside its companion, into a checkpoint's folder; on the rank that holds the engine."""
        ...

    def load(self, folder: Path) -> None:
        """What `save` wrote."""
        ...
