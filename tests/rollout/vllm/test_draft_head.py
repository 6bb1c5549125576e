"""vLLM's draft logits against a plain torch reference of the head, on the trunk's hidden states, in fp32."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.rollout.vllm.mtp_reference import MtpReference, random_head, trunk_hidden
from tests.rollout.vllm.tiny import model_and_head, tiny_model, write

pytestmark = pytest.mark.engine

CASES = [
    ("llama", "mimo", True, 3, True),
    ("llama", "eagle", False, 2, False),
    ("qwen2", "mimo", False, 1, False),
    ("qwen2", "eagle", True, 2, True),
    ("qwen3", "eagle", False, 3, True),
]


@pytest.mark.parametrize(("family", "layout", "tied", "k", "refitted"), CASES)
def test_the_engines_draft_logits_are_the_references(
    family: str, layout: str, tied: bool, k: int, refitted: bool, tmp_path: Path
) -> None:
    """Once with the weights that it was started with, once with others that a refit has brought."""
    torch.set_num_threads(1)
    model, head, folder, head_folder = model_and_head(family, tmp_path, tied=tied)
    out = tmp_path / "out.npz"
    job = {"model": folder, "head": head_folder, "layout": layout, "k": k, "work": tmp_path / "served", "out": out}
    if refitted:
        model = tiny_model(family, tied=tied, seed=1)
        head = random_head(model, seed=1)
        (tmp_path / "new").mkdir()
        job["refit_model"], job["refit_head"] = write(model, head, tmp_path / "new")
    command = [sys.executable, "-m", "tests.rollout.vllm.draft_probe", json.dumps(job, default=str)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert out.exists(), ran.stderr[-3000:]
    got = np.load(out)
    tokens = got["tokens"].tolist()
    hidden = trunk_hidden(model, tokens)
    reference = MtpReference(head, model)
    worst, steps = 0.0, 0
    for known, drafts, logits in zip(got["known"], got["drafts"], got["logits"], strict=True):
        if known == len(tokens):
            continue  # drafted once the response was full: tokens that were accepted beyond its limit are not returned
        want = reference.draft_logits(tokens[:known], hidden, drafts.tolist()).numpy()
        worst = max(worst, float(np.abs(want - logits).max()))
        steps += 1
    scale = np.abs(got["logits"]).max()
    print(f"{family} {layout} k={k}: {steps} steps, worst logit error {worst:.1e}, largest logit {scale:.0f}")
    assert steps >= 5
    assert worst < 1e-3
