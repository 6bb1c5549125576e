"""The Policy protocol: a model that is scored and updated. Every method is collective: all ranks call it alike.

Shapes: B rows, P prompt tokens, T response tokens, V vocabulary, padded on the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nemo_specrl.contracts.companion import Companion, Lesson
from nemo_specrl.contracts.rows import LossFn, Reducer, Row, Scores, TrainRow

if TYPE_CHECKING:
    import torch


class Policy(Protocol):
    """A trainable policy."""

    @property
    def version(self) -> int:
        """Number of `update` calls so far, over all resumes."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: every token id that the model can sample is below it."""
        ...

    @property
    def companions(self) -> Sequence[Companion]:
        """What rides its forward passes; `save` and `load` take them along."""
        ...

    def score(self, rows: Sequence[Row], *, reference: bool = False) -> list[Scores]:
        """Log-probabilities and entropies under the sampling law, for all rows, on every rank; no gradient.
        `reference`: of the policy that `snapshot_reference` froze."""
        ...

    def reduce(self, rows: Sequence[Row], reducer: Reducer) -> list[list[Any]]:
        """For each row the list of its chunks' reductions, on every rank; no gradient."""
        ...

    def update(
        self, rows: Sequence[TrainRow], loss_fn: LossFn, *, loss_level: str, lessons: Sequence[Lesson] = ()
    ) -> dict[str, float]:
        """One optimizer update on one mini-batch. Returns loss, grad_norm, lr and the loss's own metrics.
        `lessons`: companions that learn from the same forward pass, each by the rows and weights of its lesson; their
        metrics are among those returned."""
        ...

    def snapshot_reference(self) -> None:
        """Freeze a copy of the current weights for `score(..., reference=True)`."""
        ...

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face (name, tensor) pairs in the compute dtype, complete on rank 0; other ranks take part."""
        ...

    def save(self, folder: Path) -> None:
        """Write this rank's share of model, optimizer, schedule and companions into `folder` (which exists)."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; ValueError when the layout or the model differs."""
        ...
