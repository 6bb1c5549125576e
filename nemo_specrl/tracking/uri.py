"""Which MLflow a run talks to, and how patiently."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from nemo_specrl.tracking.redact import redact_text

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def resolve_uri(uri: str | None, output_dir: Path) -> str:
    """The configured URI, else MLFLOW_TRACKING_URI, else a sqlite file beside the output folders.

    A relative sqlite path starts at the working folder. Raises ValueError for a file store, which MLflow refuses since
    3.13, and for any other URI that it cannot open.
    """
    chosen = uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not chosen:
        return f"sqlite:///{output_dir.absolute().parent / 'mlflow.db'}"
    if fault := _fault(chosen):
        raise ValueError(
            f"tracking URI {shown(chosen)!r} {fault}: use sqlite:////absolute/path/mlflow.db, postgresql://..., or the "
            f"http(s) address of an mlflow server"
        )
    path = sqlite_file(chosen)
    return chosen if path is None else chosen.replace(str(path), str(path.absolute()), 1)


def _fault(uri: str) -> str | None:
    try:
        parts = urlsplit(uri)
        _ = parts.port  # is parsed when it is asked for
    except ValueError as error:
        return f"is no address ({error})"
    if uri.split(":")[0] in ("databricks", "databricks-uc", "uc"):
        return "is Databricks', whose experiments and models follow rules of their own: it is not supported"
    if parts.scheme in ("", "file"):
        return "is a folder, which MLflow no longer takes"
    if parts.scheme in ("http", "https"):
        return None if parts.hostname else "names no host"
    return None if is_database(uri) else "is of no kind that MLflow opens"


def is_database(uri: str) -> bool:
    """Whether MLflow opens the URI as a database of its own and not over HTTP."""
    return urlsplit(uri).scheme.split("+")[0] in _DATABASES


def sqlite_file(uri: str) -> Path | None:
    """The file behind a sqlite URI; None for everything else."""
    return Path(uri.removeprefix("sqlite:///").split("?")[0]) if uri.startswith("sqlite:///") else None


def shown(uri: str) -> str:
    """The URI as it may be logged: without a password."""
    return redact_text(uri)


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """What MLflow and the libraries below it raise becomes a ValueError of one line, which names the URI."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError) as error:
        reason = redact_text(str(error)).strip().splitlines()
        raise ValueError(
            f"MLflow at {shown(uri)}: {reason[0][:400] if reason else type(error).__name__} (is the address right, and "
            "the server up?)"
        ) from error


def set_patience() -> None:
    """Bound MLflow's own retries, which otherwise block for minutes a call. What the user has set stays.

    The follower retries by itself, so one quick try is all that a call needs.
    """
    for name, value in {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",  # a 503 may ask for minutes, asleep within the call
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "2",
        "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "2",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        os.environ.setdefault(name, value)
