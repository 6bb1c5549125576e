"""`nemo-specrl preflight`: one short srun on the nodes that a job would get, before hours are spent on a bad one."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_specrl.cluster.calls import clean
from nemo_specrl.cluster.canary import PREFIX
from nemo_specrl.cluster.header import header
from nemo_specrl.cluster.payload import container, expandable
from nemo_specrl.cluster.validate import validate_cluster
from nemo_specrl.config.run import RunConfig

TIMEOUT_S = 1800.0
MAX_CLOCK_SKEW_S = 2.0
# Options of a batch job that an srun does not take, or that a canary has no use for.
_BATCH_ONLY = ("output", "open-mode", "signal", "requeue", "no-requeue", "array", "time", "dependency", "export")


def preflight(run: RunConfig) -> int:
    """Run the canary with this configuration's resources and container; 0 when every node passed."""
    validate_cluster(run.cluster, run)
    workdir = Path.cwd() if run.cluster.workdir is None else Path(os.path.expandvars(run.cluster.workdir))
    output = (workdir / run.output_dir).absolute()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix="preflight-") as folder:
        token = secrets.token_hex(8)
        (Path(folder) / "token").write_text(token)
        inside = "SLURM_JOB_ID" in os.environ
        script = render(run, str(workdir), str(output), folder, inside=inside)
        env = os.environ if inside else clean(os.environ)
        try:
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, env=env)
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"no nodes within {TIMEOUT_S / 60:.0f} minutes: see squeue for the reason") from error
    reports = parse(done.stdout)
    for item in reports:
        print(f"{item['node']}: {len(item['gpus'])} GPU(s) {sorted(set(item['gpus']))}, {item['versions']}")
    faults = check(reports, run.cluster.nodes, run.cluster.gpus_per_node, token)
    if done.returncode:
        faults.insert(0, f"srun ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    for fault in faults:
        print(f"FAULT {fault}", file=sys.stderr)
    print("preflight: " + (f"{len(faults)} fault(s)" if faults else f"{len(reports)} node(s) are fit"))
    return 1 if faults else 0


def render(run: RunConfig, workdir: str, output: str, folder: str, inside: bool) -> str:
    """The bash text that runs the canary; `inside` an allocation it becomes a step of it."""
    c = run.cluster
    options = ["--nodes=" + str(c.nodes), f"--ntasks={c.nodes}", "--ntasks-per-node=1"]
    if inside:
        options.append("--overlap")
    else:
        kept = [option.text for option in header(run, 1)]
        skipped = (*_BATCH_ONLY, "nodes", "ntasks-per-node")
        options += [text for text in kept if text.lstrip("-").partition("=")[0] not in skipped]
        options.append("--time=10")
    before, words = container(c)
    python = " ".join(expandable(word) for word in shlex.split(c.python))
    srun = [*options, *before, *(shlex.quote(word) for word in c.extra_srun), *words]
    lines = [
        "export SLURM_EXPORT_ENV=ALL",  # the allocation's own --export does not hold for the canary
        f"WORKDIR={shlex.quote(workdir)} OUTPUT_DIR={shlex.quote(output)} SCRATCH={expandable(c.scratch)}",
        *(f"export {name}={shlex.quote(value)}" for name, value in c.env.items()),
        *c.setup,
        'cd "$WORKDIR"',
        f"exec srun {' '.join(srun)} {python} -m nemo_specrl.cluster.canary {shlex.quote(folder)}",
    ]
    return "\n".join(lines)


def parse(text: str) -> list[dict[str, Any]]:
    """The canaries' reports, by node name."""
    lines = [line.partition(PREFIX)[2] for line in text.splitlines() if PREFIX in line]
    return sorted((json.loads(line) for line in lines), key=lambda item: str(item["node"]))


def check(reports: Sequence[dict[str, Any]], nodes: int, gpus: int, token: str) -> list[str]:
    """What is wrong, in words; empty = fit."""
    faults = []
    if len(reports) != nodes:
        names = ", ".join(item["node"] for item in reports) or "none"
        faults.append(f"{len(reports)} of {nodes} nodes answered ({names}): the container or Python starts on no other")
    for item in reports:
        if len(item["gpus"]) < gpus:
            faults.append(f"{item['node']}: sees {len(item['gpus'])} of {gpus} GPUs (driver, --nv, or the request)")
        if item["shared"]:
            faults.append(f"{item['node']}: cannot write to the output folder: {item['shared']}")
        elif item["token"] != token:
            faults.append(f"{item['node']}: sees another output folder than this machine: it must be on shared storage")
    for name in sorted({name for item in reports for name in item["versions"]}):
        found: dict[str, list[str]] = {}
        for item in reports:
            found.setdefault(item["versions"].get(name, "missing"), []).append(item["node"])
        if len(found) > 1:
            faults.append(f"{name} differs: " + "; ".join(f"{v} on {', '.join(on)}" for v, on in found.items()))
    offsets = [item["clock_offset_s"] for item in reports]
    if offsets and max(offsets) - min(offsets) > MAX_CLOCK_SKEW_S:
        faults.append(
            f"clocks differ by {max(offsets) - min(offsets):.1f} s (allowed: {MAX_CLOCK_SKEW_S} s): check NTP"
        )
    return faults
