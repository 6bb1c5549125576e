"""Learning rates, by NeMo's schedules."""

from __future__ import annotations

import math

import pytest

from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.policy.megatron.schedule import LearningRate


def rates(total: int | None = 10, **settings: object) -> list[float]:
    schedule = LearningRate(PolicyConfig(lr=1.0, **settings), total)  # type: ignore[arg-type]
    return [schedule(i) for i in range(12)]


def test_constant() -> None:
    assert rates(None) == [1.0] * 12


def test_warm_up_is_linear() -> None:
    assert rates(None, warmup_steps=3)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_decays_end_at_the_floor() -> None:
    cosine, linear = rates(lr_schedule="cosine", min_lr=0.1), rates(lr_schedule="linear", min_lr=0.1)
    assert cosine[5] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert linear[5] == pytest.approx(0.55)
    assert cosine[10:] == pytest.approx([0.1, 0.1])
    assert linear[10:] == pytest.approx([0.1, 0.1])


def test_schedules_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="constant, cosine, linear"):
        rates(lr_schedule="step")
    with pytest.raises(ValueError, match="number of steps"):
        rates(None, lr_schedule="cosine")
    with pytest.raises(ValueError, match="shorten the warm-up"):
        rates(5, lr_schedule="linear", warmup_steps=5)
