"""vLLM's draft logits against a plain torch reference of the head, on the trunk's hidden states, in fp32."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.rollout.vllm.mtp_reference import MtpReference, trunk_hidden
from tests.rollout.vllm.tiny import model_and_head

pytestmark = pytest.mark.engine

CASES = [
    ("llama", "mimo", False, 3),
    ("llama", "eagle", True, 2),
    ("qwen2", "mimo", True, 1),
    ("qwen2", "eagle", False, 3),
    ("qwen3", "eagle", False, 3),
    ("qwen3", "eagle", True, 1),
]


@pytest.mark.parametrize(("family", "layout", "tied", "k"), CASES)
def test_the_engines_draft_logits_are_the_references(
    family: str, layout: str, tied: bool, k: int, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    model, head, folder, head_folder = model_and_head(family, tmp_path, tied=tied)
    out = tmp_path / "out.npz"
    job = {"model": folder, "head": head_folder, "layout": layout, "k": k, "work": tmp_path / "served", "out": out}
    command = [sys.executable, "-m", "tests.rollout.vllm.draft_probe", json.dumps(job, default=str)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert out.exists(), ran.stderr[-3000:]
    got = np.load(out)
    tokens = got["tokens"].tolist()
    hidden = trunk_hidden(model, tokens)
    reference = MtpReference(head, model)
    worst, steps = 0.0, 0
    for known, drafts, logits in zip(got["known"], got["drafts"], got["logits"], strict=True):
        want = reference.draft_logits(tokens[:known], hidden, drafts.tolist()).numpy()
        worst = max(worst, float(np.abs(want - logits).max()))
        steps += 1
    scale = np.abs(got["logits"]).max()
    print(f"{family} {layout} k={k}: {steps} steps, worst logit error {worst:.1e}, largest logit {scale:.0f}")
    assert steps >= 5
    assert worst < 1e-3
