"""A real mlflow server on the loopback, to be started, killed and started again on the same port and database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class MlflowServer:
    """Keeps its database and artifacts in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.database = folder / "server.db"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.database}",
            "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        environ = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environ.pop("MLFLOW_TRACKING_URI", None)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environ, start_new_session=True, cwd=self.folder
            )
        deadline = time.monotonic() + 180
        while True:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None, (self.folder / "server.log").read_text()[-3000:]
                assert time.monotonic() < deadline, (self.folder / "server.log").read_text()[-3000:]
                time.sleep(0.2)

    def kill(self) -> None:
        """At once and with its workers: nothing is flushed, nobody is told. They are a process group of their own."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
