"""Which MLflow, and how patiently."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from nemo_specrl.tracking.uri import is_database, resolve_uri, set_patience, shown, sqlite_file


def test_the_configuration_wins_then_the_environment_then_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert resolve_uri(None, tmp_path / "runs" / "a") == f"sqlite:///{tmp_path}/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert resolve_uri(None, tmp_path) == "http://127.0.0.1:5000"
    assert resolve_uri("https://mlflow", tmp_path) == "https://mlflow"


@pytest.mark.parametrize("uri", ["mlruns", "./x", "file:/tmp/x"])
def test_file_stores_are_refused_with_the_remedy(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no longer takes: use sqlite:////absolute/path/mlflow\.db, postgresql://"):
        resolve_uri(uri, tmp_path)


@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        ("databricks", "Databricks"), ("databricks://profile", "Databricks"), ("uc:x", "Databricks"),
        ("foo://bar", "of no kind"), ("localhost:5000", "of no kind"), ("http://", "no host"),
        ("http://[x", "no address"), ("http://h:99999", "Port out of range"), ("foo://u:secret@h", "foo://[redacted]@h"),
    ],
)  # fmt: skip
def test_what_is_no_tracking_uri_is_named(uri: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(fault) + ".*use sqlite:"):
        resolve_uri(uri, tmp_path)


@pytest.mark.parametrize(
    ("uri", "database"),
    [
        ("sqlite:////x.db", True), ("postgresql://h/d", True), ("postgresql+psycopg2://u:p@h/d?sslmode=no", True),
        ("mysql+pymysql://h/d", True), ("http://h", False), ("https://h:5000", False), ("databricks", False),
    ],
)  # fmt: skip
def test_databases_are_told_from_servers(uri: str, database: bool) -> None:
    assert is_database(uri) is database


def test_the_file_behind_a_sqlite_uri() -> None:
    assert sqlite_file("sqlite:////a/b.db?timeout=3") == Path("/a/b.db")
    assert sqlite_file("sqlite:///b.db") == Path("b.db")
    assert sqlite_file("postgresql://h/d") is None


def test_passwords_are_not_shown() -> None:
    assert shown("postgresql+psycopg2://user:pa$$w0rd@host:5432/mlflow") == (
        "postgresql+psycopg2://[redacted]@host:5432/mlflow"
    )


def test_patience_is_bounded_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "99")
    set_patience()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "99"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert os.environ["MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER"] == "false"


def test_a_relative_sqlite_path_starts_at_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an array's job script names it; the artifacts beside it need an absolute path."""
    monkeypatch.chdir(tmp_path)
    assert resolve_uri("sqlite:///runs/a/mlflow.db", tmp_path) == f"sqlite:///{tmp_path}/runs/a/mlflow.db"
    assert resolve_uri("sqlite:////abs/mlflow.db", tmp_path) == "sqlite:////abs/mlflow.db"
