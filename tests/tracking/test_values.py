"""Names and numbers on their way to MLflow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_specrl.tracking.values import (
    MAX_KEY,
    KeyCollisionError,
    KeyTable,
    clean_key,
    flatten,
    numbers,
    stable_text,
    to_number,
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("pass@1", "pass_at_1"), ("a[0]", "a_0_"), ("a//b", "a/b"), ("/a", "a"), ("a/", "a"), ("a/../b", "a/b"),
        ("", "_"), ("..", "_"), ("train/loss", "train/loss"), ("größe 1.5:x", "größe 1.5:x"), ("a\nb", "a_b"),
    ],
)  # fmt: skip
def test_bad_keys_become_good_ones(raw: str, clean: str) -> None:
    assert clean_key(raw) == clean


@settings(deadline=None)
@given(st.text(max_size=400))
def test_every_key_is_one_that_mlflow_takes(raw: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    key = clean_key(raw)
    validation._validate_metric_name(key)
    assert len(key) <= MAX_KEY
    assert clean_key(key) == key


def test_two_names_that_would_become_one_are_an_error_that_names_both() -> None:
    keys = KeyTable()
    assert keys.clean("pass@1") == "pass_at_1"
    assert keys.clean("pass@1") == "pass_at_1", "the same name again is no collision"
    with pytest.raises(KeyCollisionError, match=r"'pass_at_1' .* 'pass@1'"):
        keys.clean("pass_at_1")


def test_nested_values_and_dataclasses_are_flattened() -> None:
    @dataclass
    class Inner:
        c: int = 3

    assert dict(flatten({"a": {"b": 1}, "i": Inner(), "e": {}})) == {"a/b": 1, "i/c": 3}
    assert dict(flatten({"a": {"b": [1, 2]}}, separator=".")) == {"a.b": [1, 2]}


def test_nan_and_infinities_become_counters() -> None:
    values = {"loss": math.nan, "grad": {"norm": math.inf}, "ok": 1.5}
    assert dict(numbers(values)) == {"nonfinite/loss": 1, "nonfinite/grad/norm": 1, "ok": 1.5}


@pytest.mark.parametrize("huge", [10**400, -(10**400), 2**1024, Fraction(10**400), Decimal("1e400"), Decimal("nan")])
def test_what_no_float_holds_becomes_a_counter(huge: object) -> None:
    """A metric of 10**400 ended a run with an OverflowError."""
    assert dict(numbers({"x": huge, "ok": 2**1023})) == {"nonfinite/x": 1, "ok": 2**1023}
    assert dict(numbers({"x": [huge] * 2, "y": [huge] * 100, "z": [2**1023] * 100})) == {
        "nonfinite/x/0": 1, "nonfinite/x/1": 1, "nonfinite/y/mean": 1, "nonfinite/y/min": 1, "nonfinite/y/max": 1,
        "nonfinite/z/mean": 1, "z/min": 2**1023, "z/max": 2**1023,
    }  # fmt: skip


def test_half_a_character_becomes_text() -> None:
    assert stable_text("a\ud83d") == "a\\ud83d"


def test_arrays_lists_and_scalars_of_other_libraries() -> None:
    found = dict(numbers({"a": np.float32(0.5), "b": np.array([1, 2]), "c": True, "d": np.array(7), "e": [1.0]}))
    assert found == {"a": 0.5, "b/0": 1, "b/1": 2, "c": 1, "d": 7, "e/0": 1.0}
    assert dict(numbers({"long": list(range(101))})) == {"long/mean": 50.0, "long/min": 0, "long/max": 100}


@pytest.mark.parametrize("value", ["text", None, object(), "3", b"1", [], ["x"], [1, None]])
def test_what_is_no_number_is_reported_as_none(value: object) -> None:
    assert dict(numbers({"x": value})) == {"x": None}


def test_big_integers_stay_exact() -> None:
    assert to_number(2**60 + 1) == 2**60 + 1


def test_text_of_a_value_is_the_same_in_every_process() -> None:
    assert stable_text(test_big_integers_stay_exact).endswith(".test_big_integers_stay_exact")
    assert " at 0x" not in stable_text(object())
    assert stable_text({"b": {2, 1}, "a": (1.0, None, Path("x"))}) == "{a: [1.0, None, x], b: [1, 2]}"
