"""A multi-token-prediction head that rides the policy's forward passes and learns from them in every step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.contracts.companion import Companion, Lesson
from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.contracts.rows import Row
from nemo_specrl.contracts.verdict import Verdict
from nemo_specrl.drafting.acceptance import AcceptanceFloor
from nemo_specrl.drafting.base import BaseDrafter
from nemo_specrl.drafting.token_counts import TokenCounts
from nemo_specrl.models.folder import shapes
from nemo_specrl.models.head_layout import check_head, check_source
from nemo_specrl.types import IntArray, Rollout

if TYPE_CHECKING:
    from nemo_specrl.config.run import RunConfig

_OWN_HEAD = "the head is drafter.head.source, and runs with the engine's own tensor parallelism; remove the key"


class Mtp(BaseDrafter):
    """policy/mtp has the head; docs/mtp.md what it does."""

    has_head = True
    clashes = {"model": _OWN_HEAD, "draft_tensor_parallel_size": _OWN_HEAD}  # noqa: RUF012

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self._head: Companion | None = None
        self._tokens = TokenCounts()
        self._floor = AcceptanceFloor(config.head.acceptance_floor, config.head.floor_patience)

    def faults(self, run: RunConfig) -> Iterator[str]:
        """A head that has learnt nothing must not be frozen."""
        yield from super().faults(run)
        if run.trainer.task != "warmup" and self.config.head.source == "scratch" and self.config.head.every == 0:
            yield (
                "drafter.head.every=0 freezes a head that has learnt nothing: give drafter.head.source a folder that "
                "experiment=draft_warmup wrote, or let it learn"
            )

    def check_model(self, folder: Path) -> None:
        """A head that is given must be there and fit."""
        source = self.config.head.source
        if source != "scratch":
            check_source(source, folder)
        if source not in ("scratch", "native"):
            check_head(shapes(folder), shapes(Path(source)), json.loads((folder / "config.json").read_text()))

    def vllm_keys(self, served: Mapping[str, Any]) -> dict[str, Any]:
        """Sampled drafts where the verifier knows them.

        Drafts sampled from q are accepted at sum(min(p, q)), argmax drafts only at p of one token: the hotter the
        policy, the wider the gap (Bebop, arXiv 2606.12370). `block` knows argmax drafts only."""
        sampled = self.config.rejection_sample_method == "standard"
        return ({"draft_sample_method": "probabilistic"} if sampled else {}) | dict(served)

    def join(self, policy: Any) -> Companion | None:
        """The head, on this policy."""
        from nemo_specrl.policy.mtp.companion import HeadCompanion

        self._head = policy.join(HeadCompanion(self.config.head, policy))
        return self._head

    def lessons(self, rows: int, step: int) -> Sequence[Lesson]:
        """Every drafter.head.every-th step, from all rows alike."""
        every = self.config.head.every
        if self._head is None or every == 0 or step % every:
            return ()
        return [Lesson(self._head, [1.0] * rows)]

    def start(self, rollouts: Sequence[Rollout]) -> None:
        """A fresh head drafts from the next step on, whether it learns in this one or not."""
        if self._head is not None and self.config.head.every > 0:
            self._head.start([Row(r.prompt_ids, r.token_ids) for r in rollouts])

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Count tokens, for the short vocabulary."""
        self._tokens.observe(rollouts)

    def refit_extras(self, vocab_size: int) -> dict[str, IntArray]:
        """`shortlist` [L]: the tokens that the head shall choose among, where it is not all of them."""
        size = self.config.head.vocabulary
        return {"shortlist": self._tokens.most_frequent(size, vocab_size)} if 0 < size < vocab_size else {}

    def verdict(self, spec: SpecCounters) -> Verdict | None:
        """A stale or wrong head leaves the outputs right, so nothing but its acceptance would tell."""
        return self._floor.verdict(spec)

    def save(self, folder: Path) -> None:
        """The token counts: a resumed run drafts what it would have drafted."""
        self._tokens.save(folder)

    def load(self, folder: Path) -> None:
        """What `save` wrote."""
        self._tokens.load(folder)
