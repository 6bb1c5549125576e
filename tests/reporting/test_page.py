"""The page in a real browser: hovered, toggled, switched, in both themes, without asking for anything."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from browser import Browser, chromium

from nemo_specrl.reporting import compare, load_run, run_report
from nemo_specrl.reporting.html import comparison_page

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def page(bench: list[Path], tmp_path: Path) -> Iterator[Browser]:
    path = tmp_path / "report.html"
    path.write_text(comparison_page(compare([load_run(folder) for folder in bench])))
    with chromium(tmp_path) as browser:
        browser.prefer("light")
        browser.open(path)
        yield browser
        assert browser.errors == []
        assert all(address.startswith(("file://", "data:")) for address in browser.requests), browser.requests


def colours(image: bytes) -> set[bytes]:
    """The pixels' colours of an 8-bit RGB(A) PNG, a sample of them: enough to tell a picture from a blank."""
    width, _, _, kind = struct.unpack(">IIBB", image[16:26])
    data, at = b"", 8
    while at < len(image):
        size, name = struct.unpack(">I4s", image[at : at + 8])
        data += image[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += size + 12
    depth = 4 if kind == 6 else 3
    raw = zlib.decompress(data)
    return {raw[i : i + depth] for i in range(1, len(raw), depth * 97 + width % 7)}


def test_hovering_legend_tabs_and_themes(page: Browser, tmp_path: Path) -> None:
    figure = "figure:first-of-type"
    tip = f"document.querySelector('{figure} .tip')"
    assert page.js(f"{tip}.hidden")
    page.hover(f"{figure} div:not([hidden]) > svg", 0.6)
    assert page.js(f"{tip}.hidden") is False
    text = page.js(f"{tip}.textContent")
    assert text.startswith("step 2")
    assert "vanilla0." in text
    assert "exact0." in text
    assert "[" in text, "the range over seeds"
    assert len(colours(page.screenshot(tmp_path / "light.png"))) > 20

    page.click(f"{figure} [data-toggle=exact]")
    series = f"document.querySelector('{figure} g[data-series=exact]')"
    assert page.js(f"getComputedStyle({series}).display") == "none"
    page.hover(f"{figure} div:not([hidden]) > svg", 0.5)
    assert "exact" not in page.js(f"{tip}.textContent")
    page.click(f"{figure} [data-toggle=exact]")
    assert page.js(f"getComputedStyle({series}).display") != "none"

    page.click(f"{figure} [data-tab=time]")
    assert page.js(f"document.querySelector('{figure} [data-panel=step]').hidden")
    page.hover(f"{figure} [data-panel=time] > svg", 0.5)
    assert page.js(f"{tip}.textContent").startswith("seconds of training ")

    page.js(f"document.querySelector('{figure} [data-panel=time] svg').focus()")
    before = page.js(f"{tip}.textContent")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert page.js(f"{tip}.textContent") != before, "arrow keys move the cursor"

    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.js(ground)
    page.prefer("dark")
    dark = page.js(ground)
    assert light != dark
    page.click("#theme")
    assert page.js(ground) == light, "the button overrules the system"
    page.click("#theme")
    assert page.js(ground) == dark
    assert len(colours(page.screenshot(tmp_path / "dark.png"))) > 20


def test_bars_tell_their_stage(page: Browser) -> None:
    page.hover("rect[data-series=generate]")
    assert "generate 8" in page.js("document.querySelectorAll('.tip')[1].textContent")
    page.click("[data-toggle=generate]")
    assert page.js("getComputedStyle(document.querySelector('rect[data-series=generate]')).display") == "none"


def test_it_fits_a_telephone(page: Browser) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
    assert page.js("document.documentElement.scrollWidth") <= 400


def test_a_runs_own_report_opens_without_errors(bench: list[Path], tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.open(run_report(bench[3]))
        assert "exact" in browser.js("document.title")
        browser.click("summary")
        assert browser.js("document.querySelector('details').open")
        assert browser.errors == []
