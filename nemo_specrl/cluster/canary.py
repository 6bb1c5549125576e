"""What `nemo-specrl preflight` runs on every node, inside of the container: one line of JSON. Standard library only."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nemo_specrl.packages import versions

PREFIX = "nemo-specrl-canary "


def report(folder: Path) -> dict[str, Any]:
    """This node's name, GPUs, versions, and whether it shares `folder` with the others and with their clocks."""
    return {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "gpus": gpus(),
        "versions": {"python": platform.python_version(), **versions()},
        **shared(folder),
    }


def gpus() -> list[str]:
    """The GPUs that this job may use, by name; empty where there is no driver."""
    try:
        query = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader"]
        text = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # Slurm's choice, where it does not hide the other GPUs
        chosen = visible.split(",")
        found = [cells for cells in found if cells[0] in chosen or any(c and cells[1].startswith(c) for c in chosen)]
    return [f"{name}, driver {driver}" for _, _, name, driver in found]


def shared(folder: Path) -> dict[str, Any]:
    """Write to the shared folder and compare its clock with this node's."""
    mine = folder / f"canary-{socket.gethostname()}-{os.getpid()}"
    try:
        token = (folder / "token").read_text()
        before = time.time()
        mine.write_text(token)
        offset = (before + time.time()) / 2 - mine.stat().st_mtime
        mine.unlink()
    except OSError as error:
        return {"shared": f"{error.strerror}: {error.filename}", "token": "", "clock_offset_s": 0.0}
    return {"shared": "", "token": token, "clock_offset_s": offset}


if __name__ == "__main__":
    print(PREFIX + json.dumps(report(Path(sys.argv[1]))), flush=True)
