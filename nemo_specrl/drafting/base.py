"""What all drafters share: the neutral answers, and the checks that concern every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nemo_specrl.config import bounds
from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.contracts.companion import Companion, Lesson
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.contracts.verdict import Verdict
from nemo_specrl.types import IntArray, Rollout

if TYPE_CHECKING:
    from nemo_specrl.config.run import RunConfig

LOSSLESS = ("standard", "block")
"""vLLM's rejection_sample_method values that leave the sampling law alone. An allowlist: new lossy ones appear
(`synthetic`, 0.33's `fly`) and a denylist would miss them."""
_OWNED: dict[str, str] = {
    "method": "drafter.method",
    "num_speculative_tokens": "drafter.num_draft_tokens",
    "rejection_sample_method": "drafter.rejection_sample_method",
}
"""Keys of vLLM's speculative_config that are ours -> the key of ours that says it."""


class BaseDrafter:
    """A drafter of vLLM's that learns nothing. Subclasses say what is different about them, and are final."""

    drafts: ClassVar[bool] = True
    has_head: ClassVar[bool] = False
    engine_learns: ClassVar[bool] = False
    follows: ClassVar[bool] = True
    """A weight update leaves it no staler: it has no weights of its own, or such as the update brings."""
    clashes: ClassVar[Mapping[str, str]] = {}
    """Keys of drafter.speculative_config that it cannot be given -> why."""

    def __init__(self, config: DrafterConfig) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """drafter.method."""
        return self.config.method

    @property
    def window(self) -> int:
        """See `Drafter.window`."""
        return 0

    def check(self) -> None:
        """See `Drafter.check`."""
        config, extra = self.config, self.config.speculative_config
        bounds.check(config, "drafter")
        if not self.follows and not config.frozen:
            raise ValueError(
                f"drafter={self.name} has weights of its own, which no weight update reaches: the policy moves away "
                "from it and acceptance falls, silently. Use drafter=mtp (a head that is trained along), history or "
                "ngram, or set drafter.frozen=true to keep it as it is on purpose"
            )
        methods = {config.rejection_sample_method, extra.get("rejection_sample_method", config.rejection_sample_method)}
        if not config.allow_lossy:
            for method in sorted(methods - set(LOSSLESS)):
                raise ValueError(
                    f"rejection_sample_method={method} is not known to be lossless: choose one of "
                    f"{', '.join(LOSSLESS)}, or set drafter.allow_lossy=true, which is stamped on the run"
                )
            if lossy := [k for k in _acceptance_keys(extra) if k != "rejection_sample_method"]:
                raise ValueError(
                    f"drafter.speculative_config.{lossy[0]} bends the acceptance of drafts: remove it, "
                    "or set drafter.allow_lossy=true, which is stamped on the run"
                )
        for key, ours in _OWNED.items():
            if key in extra:
                raise ValueError(
                    f"drafter.speculative_config.{key}={extra[key]}: set {ours} instead, so that it is said once"
                )
        for key in sorted(set(self.clashes) & set(extra)):
            raise ValueError(f"drafter={self.name} with drafter.speculative_config.{key}: {self.clashes[key]}")

    def faults(self, run: RunConfig) -> Iterator[str]:
        """See `Drafter.faults`."""
        if run.trainer.task == "warmup" and not self.has_head:
            yield f"trainer.task=warmup trains a draft head, and drafter={self.name} has none: use drafter=mtp"

    def check_model(self, folder: Path) -> None:
        """See `Drafter.check_model`."""

    def fits(self, slots: int, *, cpu: bool) -> Drafter:
        """See `Drafter.fits`."""
        return self

    def speculative_config(self, served: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """See `Drafter.speculative_config`."""
        return {
            "method": self.name,
            "num_speculative_tokens": self.config.num_draft_tokens,
            "rejection_sample_method": self.config.rejection_sample_method,
            **self.vllm_keys(served or {}),
            **self.config.speculative_config,
        }

    def vllm_keys(self, served: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of vLLM's speculative_config that are this drafter's own."""
        return {}

    def join(self, policy: Any) -> Companion | None:
        """See `Drafter.join`."""
        return None

    def lessons(self, rows: int, step: int) -> Sequence[Lesson]:
        """See `Drafter.lessons`."""
        return ()

    def start(self, rollouts: Sequence[Rollout]) -> None:
        """See `Drafter.start`."""

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """See `Drafter.observe`."""

    def refit_extras(self, vocab_size: int) -> dict[str, IntArray]:
        """See `Drafter.refit_extras`."""
        return {}

    def verdict(self, spec: SpecCounters) -> Verdict | None:
        """See `Drafter.verdict`."""
        return None

    def save(self, folder: Path) -> None:
        """See `Drafter.save`."""

    def load(self, folder: Path) -> None:
        """See `Drafter.load`."""


def _acceptance_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys that bend acceptance: synthetic_acceptance_rates, typical_acceptance_*, posterior_threshold, ..."""
    return sorted(k for k in config if any(word in k for word in ("accept", "posterior", "lenien", "rejection")))
