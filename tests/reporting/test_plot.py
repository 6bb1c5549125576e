"""Charts that are well-formed and scaled to their data."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_specrl.reporting.curves import Curve
from nemo_specrl.reporting.plot import HEIGHT, WIDTH, legend, line_chart, stacked_bars, tick, ticks


def curve(name: str, y: list[float], low: float = math.nan) -> Curve:
    values = np.array(y)
    gap = np.full(len(y), low)
    return Curve(name, np.arange(len(y), dtype=float), values, values - gap, values + gap)


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(2, 12))
def test_ticks_are_round_inside_and_about_as_many_as_wanted(low: float, width: float, count: int) -> None:
    high = low + width
    if high - low < 1e-6 * max(abs(low), abs(high)):
        return
    found = ticks(low, high, count)
    assert len(found) <= count + 1
    assert all(low - width * 1e-6 <= value <= high + width * 1e-6 for value in found)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (20_000, "20k"), (2e6, "2M"), (0.002, "0.002"), (1500, "1500")]
)
def test_labels_of_ticks(value: float, text: str) -> None:
    assert tick(value) == text


def test_a_chart_is_xml_and_carries_its_data() -> None:
    names = ["base", "a<b>&\"'"]
    svg = ElementTree.fromstring(
        line_chart([curve(names[1], [1, 2, 3], 0.5), curve("base", [2, 2, 2])], names=names, label="t<", x_label="x&")
    )
    data = json.loads(svg.attrib["data-chart"])
    assert [series["name"] for series in data["series"]] == [names[1], "base"]
    assert [series["colour"] for series in data["series"]] == [1, 0], "an arm's colour is its own, not its place's"
    assert data["series"][1]["low"] == [None, None, None]
    paths = [element.attrib["class"] for element in svg.iter() if element.tag == "path"]
    assert paths == ["band", "line", "line"]


def test_points_stay_inside_the_picture() -> None:
    svg = ElementTree.fromstring(line_chart([curve("a", [-5, 100, 3], 1)], names=["a"], label="l", x_label="x"))
    for path in (element for element in svg.iter() if element.tag == "path"):
        numbers = [
            float(x) for x in path.attrib["d"].replace("M", " ").replace("L", " ").replace(",", " ").rstrip("Z").split()
        ]
        assert all(0 <= x <= WIDTH for x in numbers[::2])
        assert all(0 <= y <= HEIGHT for y in numbers[1::2])


def test_a_single_point_and_a_constant_still_draw() -> None:
    svg = line_chart([curve("a", [3.0])], names=["a"], label="l", x_label="x")
    assert "<circle" in svg
    assert "nan" not in svg
    assert "nan" not in line_chart([curve("a", [0.0, 0.0])], names=["a"], label="l", x_label="x")


def test_bars_are_in_proportion() -> None:
    svg = ElementTree.fromstring(stacked_bars({"a": {"x": 1.0, "y": 3.0}, "b": {"y": 2.0}}, label="l", x_label="s"))
    widths = [float(e.attrib["width"]) for e in svg.iter() if e.tag == "rect"]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert widths[2] == pytest.approx(2 * widths[0], rel=0.01)


def test_legend_names_are_escaped() -> None:
    assert "<b>" not in legend(["<b>"], ["<b>"])
