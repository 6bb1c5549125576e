"""slurm/*.sh are what the renderer writes."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "slurm"


def generator():
    spec = importlib.util.spec_from_file_location("slurm_generate", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPTS = generator().SCRIPTS


def test_the_folder_holds_exactly_these_scripts():
    assert {path.name for path in FOLDER.glob("*.sh")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_current_and_executable(name):
    path = FOLDER / name
    assert path.read_text() == generator().text(name), "run: python slurm/generate.py"
    assert path.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
