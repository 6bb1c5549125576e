"""Fake Slurm commands: they record how they were called and answer as the real ones do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

RECORD = f"""#!{sys.executable} -IS
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "calls.jsonl"), "a") as log:
    slurm = {{k: v for k, v in os.environ.items() if k.startswith(("SLURM", "SBATCH", "SQUEUE", "NEMO_SPECRL"))}}
    log.write(json.dumps({{"argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "env": slurm}}) + "\\n")
"""

FAKES = {
    "sbatch": RECORD + 'print("4243")\n',
    "squeue": RECORD + 'print(os.environ.get("FAKE_STATE", "RUNNING"))\n',
    "scontrol": RECORD
    + """
import signal
words = sys.argv[1:]
if words[:2] == ["show", "hostnames"]:
    print(os.environ["FAKE_NODES"].replace(",", "\\n"))
elif words[:2] == ["show", "node"]:
    print(f"NodeName={words[2]} NodeAddr=10.0.0.1 Port=6818")
elif words[:2] == ["show", "job"]:
    print("JobId=4242 JobState=RUNNING StartTime=2030-01-01T00:00:00 EndTime=" + os.environ.get("FAKE_END", "Unknown"))
elif words[0] == "requeue":
    if os.environ.get("FAKE_REQUEUE") == "refused":
        sys.exit("Requested operation is presently disabled")
    os.kill(os.getppid(), signal.SIGTERM)
""",
    # The step runs here, in place of srun, as the real one's forwarded signals reach it. It inherits what
    # SLURM_EXPORT_ENV says, which `sbatch --export` sets for the steps of its job.
    "srun": RECORD
    + """
words = sys.argv[1:]
while words and words[0].startswith("-"):
    words.pop(0)
names = os.environ.get("SLURM_EXPORT_ENV", "ALL").split(",")
kept = {k: v for k, v in os.environ.items() if "ALL" in names or k in names or k.startswith("SLURM")}
os.execvpe(words[0], words, kept)
""",
}


@dataclass
class FakeSlurm:
    """A folder of fake commands, and what they were called with."""

    bin: Path
    env: dict[str, str] = field(default_factory=dict)

    def calls(self, command: str) -> list[dict]:
        path = self.bin / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [call for call in found if call["argv"][0] == command]

    def write(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, script: str, folder: Path, **env: str) -> subprocess.Popen[str]:
        """Run a job script as slurmd would: a copy of it, with the job's environment."""
        copy = folder / "slurm_script"
        copy.write_text(script)
        job = {"SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": "n1", "FAKE_NODES": "n1", "SLURM_SUBMIT_DIR": str(folder)}
        keep = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(["bash", str(copy)], env=keep | job | self.env | env, cwd=folder, **pipes)

    def run(self, script: str, folder: Path, **env: str) -> tuple[int, str]:
        """The exit code and output of a whole attempt."""
        process = self.start(script, folder, **env)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch) -> FakeSlurm:
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = FakeSlurm(folder)
    for name, text in FAKES.items():
        fake.write(name, text)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert shutil.which("sbatch") == str(folder / "sbatch")
    return fake


HOSTILE = ["plain", "with space", "it's", 'say "hi"', "percent%j", "dollar$HOME", "line\nbreak", "semi;colon&`id`"]


@pytest.fixture(params=HOSTILE)
def hostile_path(request, tmp_path) -> Path:
    """An output folder whose name breaks careless quoting."""
    return tmp_path / request.param
