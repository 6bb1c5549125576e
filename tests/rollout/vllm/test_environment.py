from __future__ import annotations

from pathlib import Path

from nemo_specrl.config.engine import EngineConfig
from nemo_specrl.rollout.vllm.environment import engine_environment

PARENT = {
    "PATH": "/bin",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "3",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "VLLM_PLUGINS": "nemo_speechlm",
    "OMP_NUM_THREADS": "1",
}


def environment(prefix: Path, engine: EngineConfig | None = None, *, cpu: bool = True, **parent: str) -> dict[str, str]:
    return engine_environment(PARENT | parent, engine or EngineConfig(), cpu=cpu, offline=True, prefix=prefix, cores=6)


def test_the_trainers_process_group_is_not_inherited(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert env["PATH"] == "/bin"
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} & set(env)


def test_only_our_plugin_is_loaded_and_nobody_is_called(tmp_path: Path) -> None:
    env = environment(tmp_path)
    assert env["VLLM_PLUGINS"] == "nemo_specrl"
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert env["VLLM_NO_USAGE_STATS"] == env["HF_HUB_OFFLINE"] == "1"


def test_threads_come_from_the_config_else_from_the_cores(tmp_path: Path) -> None:
    assert environment(tmp_path)["OMP_NUM_THREADS"] == "6"
    assert environment(tmp_path, EngineConfig(threads=2))["OMP_NUM_THREADS"] == "2"
    assert environment(tmp_path, cpu=False)["OMP_NUM_THREADS"] == "1", "a GPU engine keeps the parent's"


def test_eager_means_no_compilation(tmp_path: Path) -> None:
    assert environment(tmp_path)["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in environment(tmp_path, EngineConfig(enforce_eager=False))


def test_intel_openmp_is_preloaded_where_it_lies(tmp_path: Path) -> None:
    assert "LD_PRELOAD" not in environment(tmp_path)
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    assert environment(tmp_path)["LD_PRELOAD"] == str(library)
    assert environment(tmp_path, LD_PRELOAD="/x/libtcmalloc.so")["LD_PRELOAD"] == f"{library}:/x/libtcmalloc.so"
    assert environment(tmp_path, LD_PRELOAD="/y/libiomp5.so")["LD_PRELOAD"] == "/y/libiomp5.so"
    assert "LD_PRELOAD" not in environment(tmp_path, cpu=False)


def test_the_parent_is_left_alone(tmp_path: Path) -> None:
    before = dict(PARENT)
    environment(tmp_path)
    assert before == PARENT
