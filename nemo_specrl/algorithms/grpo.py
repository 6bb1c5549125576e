"""GRPO (arXiv 2402.03300): group-relative advantages, a clipped ratio, an optional KL term."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_specrl.algorithms.advantages import has_signal
from nemo_specrl.algorithms.loss import policy_loss
from nemo_specrl.algorithms.rows import build_rows
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.contracts.rows import LossFn, TrainRow
from nemo_specrl.contracts.sample import Sample


class Grpo:
    """See `Algorithm`."""

    def __init__(self, config: AlgorithmConfig, correction: str) -> None:
        """`correction`: reuse.correction."""
        self.config, self.correction = config, correction

    @property
    def loss_level(self) -> str:
        """algorithm.loss_level."""
        return self.config.loss_level

    def admit(self, group: Sequence[Sample]) -> bool:
        """Every group; with `dynamic_sampling` those with two different rewards."""
        if not self.config.dynamic_sampling:
            return True
        rewards, valid = [s.score.value for s in group], [s.score.valid for s in group]
        return bool(has_signal(rewards, valid, [""] * len(group)).all())

    def rows(self, samples: Sequence[Sample]) -> list[TrainRow]:
        """See `build_rows`."""
        return build_rows(self.config, samples, admit=self.admit, correction=self.correction)

    def loss(self) -> LossFn:
        """See `policy_loss`."""
        return policy_loss(self.config, self.correction)
