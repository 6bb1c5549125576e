"""The Algorithm protocol: from scored samples to the rows and the loss of an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nemo_specrl.contracts.rows import LossFn, TrainRow
from nemo_specrl.contracts.sample import Sample


class Algorithm(Protocol):
    """Made from the configurations of algorithm and reuse; pure."""

    @property
    def loss_level(self) -> str:
        """How `Policy.update` normalises: `token` or `sequence`."""
        ...

    def admit(self, group: Sequence[Sample]) -> bool:
        """Whether a prompt's scored samples have anything to teach."""
        ...

    def rows(self, samples: Sequence[Sample]) -> list[TrainRow]:
        """One row for each sample that the loss has a use for, in their order; whole groups only. May be empty."""
        ...

    def loss(self) -> LossFn:
        """The objective."""
        ...
