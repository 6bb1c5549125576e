"""An in-process vLLM that records what its drafter computes: `python -m tests.rollout.vllm.draft_probe JSON`.

In a process of its own, since one process holds one engine. JSON: model, head, layout, k, work (a folder), out; and
refit_model, refit_head: folders whose weights are loaded by a refit in small chunks before anything is generated.
Writes `out` (.npz): per decoding step the number of known tokens, the k drafts [k] and their logits [k, V]; and all
tokens of the sequence.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

PROMPT = [5, 17, 9, 44, 101, 23, 8]
NEW_TOKENS = 24


def refit(llm: Any, served: Any, folders: list[Path]) -> None:
    """The trunk's and the head's tensors, shuffled into chunks of a few kB: no layer arrives whole."""
    from safetensors.torch import load_file

    from nemo_specrl.rollout.vllm import transfer

    weights = [item for folder in folders for file in folder.glob("*.safetensors") for item in load_file(file).items()]
    order = np.random.default_rng(0).permutation(len(weights))
    stream = served.complete([weights[i] for i in order])
    with transfer.private_folder() as folder, ThreadPoolExecutor() as pool:
        reports = pool.submit(llm.collective_rpc, "specrl_refit", args=(str(folder), {}))
        sent = transfer.send(stream, folder, ranks=1, answered=reports.done, chunk_bytes=5000)
        (report,) = reports.result()
    assert set(report["names"]) == sent
    assert report["problems"] == [], report["problems"]
    assert report["proved"]["head"] == sum("mtp_layers" in name for name in sent), (
        "every tensor of the head was compared"
    )


def main(job: dict[str, Any]) -> None:
    os.environ |= {"VLLM_PLUGINS": "nemo_specrl", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    import vllm

    from nemo_specrl.config.drafter import DrafterConfig
    from nemo_specrl.config.engine import EngineConfig, SamplingConfig
    from nemo_specrl.drafting import make_drafter
    from nemo_specrl.rollout.vllm import arguments, draft_folder

    served = draft_folder.build(Path(job["model"]), Path(job["head"]), Path(job["work"]), layout=job["layout"])
    drafter = make_drafter(DrafterConfig(method="mtp", num_draft_tokens=job["k"]))
    config = EngineConfig(dtype="fp32", kv_cache_gib=0.125)
    llm = vllm.LLM(
        **arguments.llm_arguments(
            served.model, config, drafter, max_length=128, seed=0, cpu=True, served=served.speculative
        )
    )
    if "refit_model" in job:
        refit(llm, served, [Path(job["refit_model"]), Path(job["refit_head"])])
    engine = llm.llm_engine
    proposer = engine.model_executor.driver_worker.worker.model_runner.drafter
    logits: list[Any] = []
    drafts: list[Any] = []
    inner_logits, inner_propose = proposer.model.compute_logits, proposer.propose

    def compute_logits(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        out = inner_logits(hidden, *args, **kwargs)
        logits.append(out.detach().float().clone().numpy())
        return out

    def propose(*args: Any, **kwargs: Any) -> Any:
        logits.clear()
        out = inner_propose(*args, **kwargs)
        drafts.append(out.clone().numpy())
        return out

    proposer.model.compute_logits, proposer.propose = compute_logits, propose
    law = arguments.sampling_arguments(SamplingConfig(max_new_tokens=NEW_TOKENS), (1,))
    params = vllm.SamplingParams(**law, max_tokens=NEW_TOKENS, seed=3)
    engine.add_request("0", {"prompt_token_ids": PROMPT}, params)
    known, all_drafts, all_logits, tokens = [], [], [], PROMPT
    while engine.has_unfinished_requests():
        before = len(drafts)
        for output in engine.step():
            tokens = PROMPT + list(output.outputs[0].token_ids)
        if len(drafts) > before and len(logits) == job["k"]:
            known.append(len(tokens))
            all_drafts.append(drafts[-1][0])
            all_logits.append(np.concatenate(logits))
    np.savez(job["out"], known=known, drafts=np.stack(all_drafts), logits=np.stack(all_logits), tokens=tokens)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
