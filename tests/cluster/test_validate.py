from __future__ import annotations

import pytest

from nemo_specrl.cluster.validate import PORTS_TAKEN, check_secrets, validate_cluster
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.trainer import TrainerConfig


def check(trainer: str = "local", policy: PolicyConfig | None = None, output_dir: str = "runs/r", **cluster) -> None:
    config = ClusterConfig(**cluster)
    run = RunConfig(output_dir=output_dir, trainer=TrainerConfig(name=trainer), policy=policy or PolicyConfig())
    validate_cluster(config, run)


def test_defaults_and_a_whole_site_are_valid():
    check()
    check(export="HOME,HF_TOKEN,MODE=fast")
    check(
        nodes=2, gpus_per_node=8, policy=PolicyConfig(tensor_parallel=8), runtime="pyxis", image="i", mounts=("/a:/b",)
    )
    check(
        trainer="nemo_rl",
        gpus_per_node=8,
        runtime="pyxis",
        image="i",
        nemo_rl_dir="/rl",
        nemo_rl_command="x",
        time="UNLIMITED",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runtime": "docker"}, "must be one of bare, pyxis, apptainer"),
        ({"signal": "KILL"}, "USR1, USR2, TERM"),
        ({"verb": "status"}, "train, eval, bench, verify"),
        ({"nodes": 0}, "at least 1"),
        ({"time": "4h"}, "D-H:M:S"),
        ({"time": "5", "stop_before_end_s": 300}, "leaves nothing of cluster.time=5"),
        ({"time": "UNLIMITED", "stop_before_end_s": 70000}, "at most 65535"),
        ({"comment": "a\nb"}, "line break"),
        ({"extra_sbatch": ("mail-type=FAIL",)}, "write it whole"),
        ({"extra_sbatch": ("--x\n#SBATCH --y",)}, "no option"),
        ({"env": {"1A": "x"}}, "no name of an environment variable"),
        ({"env": {"HF_TOKEN": "x"}}, "looks like a secret"),
        ({"env": {"WANDB_API_KEY": "x"}}, "looks like a secret"),
        ({"export": "HOME,HF_TOKEN=hf_0123456789"}, "write cluster.export=HF_TOKEN"),
        ({"export": " "}, "nothing is said"),
        ({"extra_srun": ("--export=NONE",)}, "attempt, scratch, the head's address"),
        ({"runtime": "apptainer", "image": "x", "extra_container": ("--cleanenv",)}, "unset in cluster.setup"),
        ({"output": "logs/x"}, "without a folder"),
        ({"nodelist": "n[1"}, "malformed node list"),
        ({"port_base": 30000}, "ephemeral"),
        ({"port_base": 8000}, "at least 9000"),
        ({"seeds": (1, 1)}, "appears twice"),
        ({"arms": ("a=x", "b=x")}, "'x'"),
        ({"max_parallel": 2}, "there is none"),
        ({"nodes": 3, "policy": PolicyConfig(tensor_parallel=2)}, "cannot be divided"),
        ({"gpus_per_node": 2, "ranks_per_node": 4}, "exceeds cluster.gpus_per_node"),
        ({"runtime": "pyxis"}, "needs cluster.image"),
        ({"image": "x"}, "no effect with cluster.runtime=bare"),
        ({"extra_container": ("--x",)}, "use cluster.extra_srun"),
        ({"runtime": "pyxis", "image": "x", "mounts": ("/a",)}, "SOURCE:TARGET"),
        ({"runtime": "pyxis", "image": "x", "output_dir": "/a:b"}, "colon or comma"),
        ({"trainer": "nemo_rl"}, "ray.sub"),
        ({"trainer": "nemo_rl", "runtime": "apptainer", "image": "x"}, "pyxis"),
        ({"trainer": "nemo_rl", "output_dir": "runs/my run"}, "output_dir='runs/my run': ray.sub cannot"),
    ],
)
def test_each_mistake_names_its_key_and_a_remedy(changes, message):
    with pytest.raises(ValueError, match=r"cluster|output_dir|trainer|node") as caught:
        check(**changes)
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ValueError, match="cluster") as caught:
        check(nodes=0, time="x", runtime="y")
    assert len(str(caught.value).splitlines()) == 3


def test_a_secret_of_the_environment_cannot_be_written_into_the_script():
    """nvSubquadratic#34"""
    environ = {"HF_TOKEN": "hf_0123456789", "PATH": "/usr/bin:/bin", "MY_SECRET": "short"}
    environ |= {"TOKENIZERS_PARALLELISM": "false and more", "HF_TOKEN_PATH": "/home/me/token"}  # no secrets themselves
    check_secrets("export X=/usr/bin:/bin short false and more /home/me/token", environ)
    with pytest.raises(ValueError, match="value of HF_TOKEN") as caught:
        check_secrets("overrides=(token=hf_0123456789)", environ)
    assert "hf_0123456789" not in str(caught.value)


def test_ports_of_jobs_overlap_neither_each_other_nor_ray_nor_the_ephemeral_range():
    """NeMo-RL#261: ray.sub's map is GCS 1200 ... vLLM 8999; Linux gives out 32768 and up."""
    base = ClusterConfig().port_base
    ranges = [range(base + 16 * (job % 500), base + 16 * (job % 500) + 16) for job in range(5000, 5500)]
    taken = [port for ports in ranges for port in ports]
    assert len(set(taken)) == len(taken) == PORTS_TAKEN
    assert min(taken) > 8999
    assert max(taken) < 32768
