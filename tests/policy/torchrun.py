"""Launch a `ranks` module under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def torchrun(module: str, ranks: int, tp: int, pp: int, model: Path, out: Path) -> dict[str, Any]:
    """What rank 0 of `module TP PP MODEL OUT` wrote to `out`."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [sys.executable, *command, "-m", module, str(tp), str(pp), str(model), str(out)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = torch.load(out, weights_only=False)
    return found
