"""Means and intervals of an evaluation."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from nemo_specrl.commands.evaluate import _by_source, _known
from nemo_specrl.training.evaluate import Evaluation
from nemo_specrl.types import Prompt


def prompt(source: str) -> Prompt:
    return Prompt(np.zeros(1, np.int32), answer="", text="", source=source)


def test_samples_of_a_prompt_are_no_independent_evidence() -> None:
    """The standard error is that over prompts' means; rewards that could not be had (NaN) are left out."""
    rewards = np.array([[1.0, 1.0], [0.0, np.nan], [1.0, 0.0]])
    found = Evaluation(rewards, np.ones((3, 2)))
    assert found.standard_error() == pytest.approx(np.std([1.0, 0.0, 0.5], ddof=1) / math.sqrt(3))


def test_what_is_not_known_is_null_in_json() -> None:
    one = Evaluation(np.array([[1.0]]), np.array([[3]]))
    assert math.isnan(one.standard_error()), "one prompt has no spread"
    assert json.dumps([_known(one.mean()), _known(one.standard_error())], allow_nan=False) == "[1.0, null]"


def test_means_by_source() -> None:
    found = Evaluation(np.array([[1.0], [0.0], [1.0]]), np.ones((3, 1)))
    assert _by_source([prompt("a"), prompt("b"), prompt("a")], found) == {"a": 1.0, "b": 0.0}
