"""`make .venv` says what it installs and how far it is."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PIP_SAYS = """\
Looking in indexes: https://index.invalid/simple, file:///mirror
WARNING: Location 'file:///mirror/absl-py/' is ignored: it is neither a file nor a directory.
Collecting absl-py==2.5.1 (from -r cpu.txt (line 1))
  Downloading absl_py-2.5.1-py3-none-any.whl (137 kB)
WARNING: Location 'file:///mirror/attrs/' is ignored: it is neither a file nor a directory.
Processing /wheels/attrs-26.1.0-py3-none-any.whl (from -r cpu.txt (line 2))
Requirement already satisfied: six==1.17.0 in ./lib (from -r cpu.txt (line 3))
Installing collected packages: attrs, absl-py
Successfully installed absl-py-2.5.1 attrs-26.1.0
"""


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements_install", ROOT / "requirements" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fake_pip(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({text!r}, end=''); sys.exit({code})"]


def test_each_package_is_counted_and_named_with_its_size(module: ModuleType) -> None:
    assert list(module.progress(PIP_SAYS.splitlines(), 3)) == [
        "1/3 absl-py==2.5.1",
        "1/3 absl_py-2.5.1-py3-none-any.whl (137 kB)",
        "2/3 attrs-26.1.0-py3-none-any.whl",
        "3/3 six==1.17.0",
        "unpacking 2 packages",
    ]


def test_the_lock_is_counted(module: ModuleType, tmp_path: Path) -> None:
    lock = ROOT / "requirements" / "cpu.txt"
    pins = [line for line in lock.read_text().splitlines() if "==" in line and not line.startswith("#")]
    assert module.count(["--no-deps", "-r", str(lock)]) == len(pins) > 200
    assert module.count(["--no-deps", "torch"]) is None


def test_a_log_gets_a_few_lines_and_no_warning(module: ModuleType, tmp_path: Path) -> None:
    out, log = io.StringIO(), tmp_path / "pip.log"
    assert module.install("2/3 packages", [], log, out, fake_pip(PIP_SAYS)) == 0
    assert out.getvalue().splitlines() == [
        "2/3 packages: 1 absl-py==2.5.1, 0 s",
        "2/3 packages: unpacking 2 packages, 0 s",
        "2/3 packages: done in 0 s",
    ]
    assert log.read_text() == PIP_SAYS


def test_a_terminal_sees_every_step_in_one_line(module: ModuleType, tmp_path: Path) -> None:
    out = Terminal()
    assert module.install("x", [], tmp_path / "pip.log", out, fake_pip(PIP_SAYS)) == 0
    first, last, end = out.getvalue().split("\n")
    assert [step.split(",")[0] for step in first.split("\r")[1:]][::4] == [
        "x: 1 absl-py==2.5.1",
        "x: unpacking 2 packages",
    ]
    assert (last, end) == ("x: done in 0 s", "")


def test_a_failure_shows_the_end_of_what_pip_said(module: ModuleType, tmp_path: Path) -> None:
    out = io.StringIO()
    says = PIP_SAYS + "ERROR: No matching distribution found for nothing\n"
    assert module.install("x", [], tmp_path / "pip.log", out, fake_pip(says, 1)) == 1
    assert "ERROR: No matching distribution found for nothing\nx: pip ended with 1; all it said is in" in out.getvalue()
    assert "WARNING" not in out.getvalue()


def test_make_says_what_it_will_do_before_it_does_it(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", f"{tmp_path}/v/.complete", f"VENV={tmp_path}/v"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"},
    )
    first, second, *rest = [line for line in done.stdout.splitlines() if line.strip()]
    assert first.startswith('echo "setting up')
    assert "-m venv" in second
    assert sum("requirements/install.py" in line for line in rest) == 4
