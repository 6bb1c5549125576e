"""Which predictions count: never the first token, never across a masked one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.policy.mtp.events import Events, possible


@given(st.lists(st.sampled_from([0.0, 1.0]), max_size=12), st.integers(1, 4))
def test_an_event_needs_every_token_from_its_start_to_its_target(mask: list[float], depth: int) -> None:
    found = possible(np.array(mask, dtype=np.float32), depth)
    for d in range(1, depth + 1):
        for j in range(len(mask)):
            expected = j >= d and all(mask[j - d : j + 1])
            assert found[d - 1, j] == float(expected), (d, j)


def test_weights_are_normalised_over_all_rows_and_fall_with_depth() -> None:
    events = Events.of([np.ones(3, np.float32), np.ones(2, np.float32)], [1.0, 3.0], 2, 0.5)
    # depth 1: tokens 1, 2 of the first row, token 1 of the second; depth 2: token 2 of the first.
    total = 1 + 1 + 3 + 0.5
    np.testing.assert_allclose(events.weights[0] * total, [[0, 1, 1], [0, 0, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(events.weights[1] * total, [[0, 3], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(events.shares, [5 / total, 0.5 / total], rtol=1e-6)
    assert events.count == 4
    assert not any(w.any() for w in events.idle().weights)


def test_nothing_to_foresee() -> None:
    events = Events.of([np.ones(1, np.float32), np.zeros(5, np.float32), np.zeros(0, np.float32)], None, 3, 1.0)
    assert events.count == 0
    assert all(np.isfinite(w).all() and not w.any() for w in events.weights)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.1], [1.0, float("nan")]])
def test_weights_that_are_none(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="2 finite numbers of at least 0"):
        Events.of([np.ones(3, np.float32)] * 2, weights, 1, 1.0)
