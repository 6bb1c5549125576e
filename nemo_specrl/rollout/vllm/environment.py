"""The environment of the engine's process: one pure function."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from nemo_specrl.config.engine import EngineConfig

TORCHRUN = frozenset(
    f"{scope}{what}" for scope in ("", "LOCAL_", "GROUP_", "ROLE_") for what in ("RANK", "WORLD_SIZE", "NAME")
) | {"MASTER_ADDR", "MASTER_PORT"}
"""The trainer's process group, which the engine must not mistake for its own (with every TORCHELASTIC_*)."""


def engine_environment(
    parent: Mapping[str, str],
    engine: EngineConfig,
    *,
    cpu: bool,
    offline: bool,
    prefix: Path,
    cores: int,
    head: bool = False,
) -> dict[str, str]:
    """The variables for the engine's process.

    `parent`: the trainer's environment. `cpu`: vLLM is the CPU build. `offline`: the model is a local folder. `head`:
    the engine drafts with an MTP head. `prefix`: sys.prefix, under whose lib/ Intel's OpenMP may lie. `cores`: CPU
    cores that this process may use.
    """
    env = {k: v for k, v in parent.items() if k not in TORCHRUN and not k.startswith("TORCHELASTIC_")}
    env |= {
        "VLLM_PLUGINS": "nemo_specrl",  # others, e.g. NeMo's speechlm2, may die on imports of their own
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's process is ours already
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # arguments.py asks for one position more; the client checks the limit
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",  # the log's last lines must be there when the process dies
        "TOKENIZERS_PARALLELISM": "false",
    }
    if head:
        # vLLM's new model runner, a GPU's default, draws drafts inside a CUDA graph, which a short drafting vocabulary,
        # renewed with each refit, would not reach. All that we know of heads was found with the old one.
        env["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if engine.tensor_parallel > 1:
        env["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    if engine.enforce_eager:
        # vLLM still compiles a helper of its log-probabilities, anew for each shape: it cost 20 s here.
        env["TORCHDYNAMO_DISABLE"] = "1"
    if offline:
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if not cpu:
        return env
    env["OMP_NUM_THREADS"] = str(engine.threads or cores)
    # Trainer and engine take turns on the same cores: pinned threads would fight over core 0.
    env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    openmp = prefix / "lib" / "libiomp5.so"
    preload = env.get("LD_PRELOAD", "")
    if openmp.exists() and "libiomp5" not in preload:
        env["LD_PRELOAD"] = os.pathsep.join(filter(None, [str(openmp), preload]))
    return env
