"""Headless Chromium over its debugging socket, for the page tests: navigate, move the mouse, click, look."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

EXECUTABLE = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)


class Browser:
    """One tab."""

    def __init__(self, address: str) -> None:
        from websockets.sync.client import connect

        self._socket = connect(address, max_size=None, open_timeout=30)
        self._count = 0
        self.requests: list[str] = []
        """Addresses that the page asked for."""
        self.errors: list[str] = []
        """Exceptions of its script."""
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])
            if message.get("id") == self._count:
                assert "error" not in message, message
                return dict(message["result"])

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.absolute().as_uri())
        deadline = time.monotonic() + 60
        while self.js("document.readyState") != "complete":
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.05)

    def js(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """x, y, width, height of the first match, scrolled into view."""
        query = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{query}.scrollIntoView({{block: 'center'}})")
        x, y, w, h = self.js(f"(b => [b.x, b.y, b.width, b.height])({query}.getBoundingClientRect())")
        return x, y, w, h

    def hover(self, selector: str, across: float = 0.5) -> None:
        """Move the mouse over an element, so far from its left."""
        x, y, w, h = self.box(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + w * across, y=y + h / 2)

    def click(self, selector: str) -> None:
        x, y, w, h = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x + w / 2, y=y + h / 2, button="left", clickCount=1)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, *, whole: bool = False) -> bytes:
        image = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        path.write_bytes(image)
        return image

    def close(self) -> None:
        self._socket.close()


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; skips the test, with the reason, where there is none."""
    if EXECUTABLE is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    pytest.importorskip("websockets", reason="the package websockets drives Chromium here; vLLM brings it")
    flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags.append("--remote-debugging-port=0")
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    profile = folder / "profile"
    with (folder / "chromium.log").open("wb") as log:
        command = [EXECUTABLE, *flags, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stderr=log, stdout=log)
    try:
        port = _wait_for_port(profile / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            tab = next(t for t in json.load(answer) if t["type"] == "page")
        browser = Browser(tab["webSocketDebuggerUrl"])
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(path: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if path.exists() and (lines := path.read_text().split()):
            return lines[0]
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        time.sleep(0.1)
    raise TimeoutError("chromium gave no debugging port")
