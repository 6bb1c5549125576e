"""The base install (pyproject.toml) has no torch, no vLLM, no MLflow: comparing runs and drawing a page need none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
import sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "vllm", "mlflow", "megatron", "nemo", "transformers", "datasets"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from nemo_specrl.reporting import run_report
from nemo_specrl.reporting.command import compare_command

assert compare_command([*sys.argv[1:], "--html", sys.argv[1] + "/compared.html"]) == 0
print(run_report(Path(sys.argv[1])))
"""


def test_reports_need_the_base_install_alone(make_run: Callable[..., Path]) -> None:
    folders = [str(make_run("a")), str(make_run("b"))]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *folders], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(folders[0], "compared.html").exists()
    assert done.stdout.splitlines()[-1].endswith("report.html")
