"""The log of sampled rollouts, which stays bounded, and the page's section, whatever text it is given."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser, chromium

from nemo_specrl.reporting import rollout_log, run_report
from nemo_specrl.reporting.rollouts import embedded, rollouts_section

MakeRun = Callable[..., Path]

HOSTILE = [
    "</script>", "<script>window.hit = 1</script>", "<img src=x onerror='window.hit=1'>", "<!--", "]]>", "&lt;&amp;",
    "\u202eevil\u202c", "\u2066x\u2069", "\ud800", "zero\u200bwidth", "\x00\x1b[31m", "\u2028\u2029", "\ufeff",
    "مرحبا", "👩‍👩‍👧", "${1}`\\u003c", "\n", "\t",
]  # fmt: skip


def rollout(tokens: list[str], by: str, **facts: Any) -> dict[str, Any]:
    assert len(tokens) == len(by)
    return {
        "prompt": "What is 2 + 2?", "answer": "4", "slot": 0, "reward": 1.0, "advantage": 0.5, "finish": "stop",
        "length": len(tokens), "tokens": tokens, "by": by, "ids": list(range(len(tokens))),
        "logprobs": [-0.5] * len(tokens), "cut": len(tokens), "left_out": 0, **facts,
    }  # fmt: skip


def test_a_repeated_step_counts_as_it_was_last_and_torn_lines_as_nothing(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        rollout_log.append(tmp_path, step, 1, [rollout(["a"], "g")])
    with (tmp_path / rollout_log.ROLLOUTS).open("a") as file:
        file.write('{"step":4,"epoch":1,"rollouts":[{"pro')  # killed here
    rollout_log.append(tmp_path, 2, 1, [rollout(["b"], "r")])
    found = rollout_log.read(tmp_path, 10**6)
    assert [(step["step"], step["rollouts"][0]["by"]) for step in found] == [(1, "g"), (2, "r"), (3, "g")]
    assert rollout_log.read(tmp_path / "none", 10**6) == []


def test_the_file_stays_bounded_and_keeps_an_even_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_log, "MAX_BYTES", 40_000)
    sizes = []
    for step in range(1, 301):
        rollout_log.append(tmp_path, step, 1, [rollout(["x" * 500], "g")])
        sizes.append((tmp_path / rollout_log.ROLLOUTS).stat().st_size)
    assert max(sizes) <= 40_000
    steps = [step["step"] for step in rollout_log.read(tmp_path, 10**6)]
    assert (steps[0], steps[-1]) == (1, 300)
    assert len(steps) > 20
    assert max(np.diff(steps)) <= 40, "no part of the run is left out"


def test_a_page_takes_what_fits_and_always_the_newest(tmp_path: Path) -> None:
    for step in range(1, 101):
        rollout_log.append(tmp_path, step, 1, [rollout(["x" * 1000], "g")])
    whole = (tmp_path / rollout_log.ROLLOUTS).stat().st_size
    found = [step["step"] for step in rollout_log.read(tmp_path, whole // 5)]
    assert 10 < len(found) <= 20
    assert found[-1] == 100
    assert found[0] <= 10
    assert [step["step"] for step in rollout_log.read(tmp_path, 0)] == [100]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_leaves_the_data_element(text: str) -> None:
    inside = embedded([text])
    assert inside.isascii()
    assert not set(inside) & set("<>&")
    assert json.loads(inside) == [text]


def test_only_the_writers_that_occur_are_explained() -> None:
    def explained(by: str) -> str:
        section = rollouts_section([{"step": 1, "epoch": 1, "rollouts": [rollout(["a"] * len(by), by)]}])
        return re.sub(r"<script.*?</script>", "", section, flags=re.S)

    assert "vLLM before 0.32" in explained("rxdg")
    assert "did not say" not in explained("rxdg")
    assert "vLLM before 0.32" not in explained("gg")
    assert "did not say whether it was drafted" in explained("gu")
    assert rollouts_section([{"step": 1, "epoch": 1, "rollouts": []}]) == ""


@pytest.fixture
def folder(make_run: MakeRun) -> Path:
    folder = make_run("spec_rl", 0, tags={"note": "lone \ud800 surrogate </script>"})
    many = [
        rollout(["Two", " and", " two", " is", " 4"], "rrxdg"),
        rollout(["No", "\n", "idea"], "ggg", reward=0.0, advantage=-0.5),
        rollout(["on", " and"] * 30, "d" * 60, reward=0.0, finish="length", cut=40, left_out=900, length=960),
        rollout(HOSTILE, "u" * len(HOSTILE), prompt=HOSTILE[1], answer=HOSTILE[2], reward=None, advantage=0.0),
    ]
    rollout_log.append(folder, 1, 1, many[:1])
    rollout_log.append(folder, 2, 1, many)
    return folder


def cards(page: Browser) -> list[str]:
    found: list[str] = page.js("[...document.querySelectorAll('.card .response')].map(r => r.textContent)")
    return found


def test_read_filter_and_hover(folder: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as page:
        page.open(run_report(folder))
        assert len(cards(page)) == 4, "the newest step first"
        page.js("document.querySelector('[data-filter=right]').click()")
        assert cards(page) == ["Two and two is 4"]
        letters = "[...document.querySelectorAll('.response .t')].map(t => t.className.slice(2)).join('')"
        assert page.js(letters) == "rrxdg"
        colours = page.js(
            "[...document.querySelectorAll('.response .t')].map(t => getComputedStyle(t).backgroundColor)"
        )
        assert len(set(colours)) == 4, "four writers, four colours"
        page.hover(".response .t:nth-of-type(3)")
        tip = page.js("document.querySelector('.reader .tip').textContent")
        assert tip == "replacement, drawn by the verificationtoken 3 of 5, id 2policy's probability 60.7 %"
        page.js("document.querySelector('[data-filter=wrong]').click()")
        assert [text[:2] for text in cards(page)] == ["No", "on"]
        page.js("document.querySelector('[data-filter=longest]').click()")
        assert [text[:2] for text in cards(page)] == ["on", "No"]
        page.js("document.querySelector('[data-filter=truncated]').click()")
        assert "900 tokens left out" in cards(page)[0]
        page.js("document.querySelector('[data-filter=all]').click()")
        page.js("document.querySelector('.reader [data-go=\"-1\"]').click()")
        assert cards(page) == ["Two and two is 4"], "step 1"
        page.js(
            "let s = document.querySelector('.reader select'); s.value = 'all'; s.dispatchEvent(new Event('change'))"
        )
        assert len(cards(page)) == 5
        page.js(
            "let f = document.querySelector('.reader input'); f.value = 'IDEA'; f.dispatchEvent(new Event('input'))"
        )
        assert len(cards(page)) == 1
        assert page.errors == []


def test_hostile_text_is_shown_and_does_nothing(folder: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as page:
        page.open(run_report(folder))
        page.js("document.querySelector('[data-filter=\"not scored\"]').click()")
        (shown,) = cards(page)
        assert page.js("window.hit") is None
        for text in HOSTILE[:6]:
            assert text in shown
        for name in ("U+202E", "U+202C", "U+2066", "U+D800", "U+200B", "U+0000", "U+001B", "U+2028", "U+FEFF"):
            assert name in shown
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u0000]", shown), "named, and not in force"
        assert page.js("document.querySelectorAll('.reader img, .cards script').length") == 0
        assert page.js("document.querySelector('.card .gold code').textContent") == HOSTILE[2]
        assert page.errors == []
        assert all(address.startswith(("file://", "data:")) for address in page.requests), page.requests


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_coloured_text_keeps_its_contrast(folder: Path, tmp_path: Path, scheme: str) -> None:
    """WCAG 2.1 AA asks for 4.5; measured on the colours that the browser really blends."""
    measure = """(() => {
      const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
      const blend = colours => { for (const c of colours) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
      const linear = v => v <= .03928 * 255 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
      const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
      return [...document.querySelectorAll('.response .t')].map(t => {
        const ground = getComputedStyle(t.closest('.response')).backgroundColor, own = getComputedStyle(t);
        const a = light(blend([ground, own.backgroundColor])), b = light(blend([own.color]));
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); });
    })()"""
    with chromium(tmp_path) as page:
        page.prefer(scheme)
        page.open(run_report(folder))
        found = page.js(measure)
        assert len(found) > 50
        assert min(found) >= 4.5


def test_it_fits_a_telephone(folder: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as page:
        page.open(run_report(folder))
        page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        assert page.js("document.documentElement.scrollWidth") <= 400
