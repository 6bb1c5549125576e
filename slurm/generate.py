"""Writes the job scripts of this folder: `python slurm/generate.py`. A test keeps them equal to the renderer."""

from __future__ import annotations

from pathlib import Path

from nemo_specrl.cluster.sbatch import render
from nemo_specrl.cluster.validate import validate_cluster
from nemo_specrl.config.compose import compose

SCRIPTS: dict[str, list[str]] = {
    "single_node.sh": ["experiment=spec_rl", "cluster.gpus_per_node=8", "policy.tensor_parallel=2"],
    "multi_node.sh": [
        "experiment=spec_rl",
        "model=qwen3_14b",
        "policy=tp8",
        "cluster=pyxis",
        "cluster.image=nemo-specrl.sqsh",
        "cluster.nodes=2",
        "cluster.cpus_per_task=64",
    ],
    "nemo_rl.sh": [
        "experiment=spec_rl",
        "model=qwen3_14b",
        "trainer=nemo_rl",
        "cluster=pyxis",
        "cluster.image=nemo-specrl.sqsh",
        "cluster.nodes=4",
        "cluster.nemo_rl_dir=$HOME/nemo-rl",
        "cluster.nemo_rl_command='uv run ./examples/run_grpo.py --config $HOME/my_grpo.yaml'",
        "cluster.stop_before_end_s=900",
    ],
    "seeds_and_arms.sh": [
        "name=ablation",
        "cluster.gpus_per_node=1",
        "cluster.seeds=[0,1,2]",
        'cluster.arms=["experiment=vanilla","experiment=spec_rl","experiment=exact"]',
        "cluster.max_parallel=4",
    ],
    "eval_after_training.sh": [
        "experiment=spec_rl",
        "cluster.verb=eval",
        "cluster.job_name=spec_rl-eval",
        "cluster.gpus_per_node=1",
    ],
    "cpu.sh": ["experiment=tiny", "cluster=cpu"],
}


def text(name: str) -> str:
    """What the script of this name must hold."""
    run = compose(SCRIPTS[name])
    validate_cluster(run.cluster, run)
    return render(run, SCRIPTS[name])


if __name__ == "__main__":
    for name in SCRIPTS:
        path = Path(__file__).parent / name
        path.write_text(text(name))
        path.chmod(0o755)
        print(path)
