from __future__ import annotations

import subprocess
from dataclasses import fields, replace

import pytest

from nemo_specrl.cluster.sbatch import explain, render
from nemo_specrl.cluster.validate import validate_cluster
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.trainer import TrainerConfig

GPU = {"gpus_per_node": 4}
SEEDS = {"seeds": (1, 2)}
PYXIS = {"runtime": "pyxis", "image": "i.sqsh"}
APPTAINER = {"runtime": "apptainer", "image": "i.sif"}
RAY = {**PYXIS, "gpus_per_node": 8, "nemo_rl_dir": "/rl", "nemo_rl_command": "uv run a.py"}
# field -> (another value, what the job must have for the field to matter, text that must appear)
CHANGES: dict[str, tuple[object, dict[str, object], str]] = {
    "name": ("site_x", {}, "site profile site_x"),
    "job_name": ("my job", {}, '#SBATCH --job-name="my job"'),
    "account": ("proj", {}, "#SBATCH --account=proj"),
    "partition": ("a,b", {}, "#SBATCH --partition=a,b"),
    "qos": ("high", {}, "#SBATCH --qos=high"),
    "nodes": (3, {}, "#SBATCH --nodes=3"),
    "ntasks_per_node": (None, {}, ""),
    "gpus_per_node": (4, {}, "#SBATCH --gpus-per-node=4"),
    "gpu_request": ("gres", GPU, "#SBATCH --gres=gpu:4"),
    "gpu_type": ("h100", GPU, "#SBATCH --gpus-per-node=h100:4"),
    "cpus_per_task": (8, {}, "--overlap --kill-on-bad-exit=1"),
    "mem": ("0", {}, "#SBATCH --mem=0"),
    "time": ("2-03:00", {}, "TIME_LIMIT=2-03:00"),
    "exclusive": (True, {}, "#SBATCH --exclusive"),
    "constraint": ("[a|b]", {}, "#SBATCH --constraint=[a|b]"),
    "reservation": ("maint", {}, "#SBATCH --reservation=maint"),
    "nodelist": ("n[1-2]", {}, "#SBATCH --nodelist=n[1-2]"),
    "exclude": ("n7", {}, "#SBATCH --exclude=n7"),
    "dependency": ("afterok:12", {}, "#SBATCH --dependency=afterok:12"),
    "comment": ('say "hi" # now', {}, r'#SBATCH --comment="say \"hi\" # now"'),
    "output": ("x-%j.out", {}, "#SBATCH --output=x-%j.out"),
    "extra_sbatch": (("--mail-type=FAIL",), {}, "#SBATCH --mail-type=FAIL"),
    "signal": ("TERM", {}, "#SBATCH --signal=B:TERM@300"),
    "stop_before_end_s": (77, {}, "#SBATCH --signal=B:USR1@77"),
    "requeue": (False, {}, "#SBATCH --no-requeue"),
    "max_attempts": (9, {}, "MAX_ATTEMPTS=9"),
    "crash_retries": (2, {}, "CRASH_RETRIES=2"),
    "seeds": ((3, 4), {}, "#SBATCH --array=0-1\n"),
    "arms": (("reuse=exact", "reuse=off"), {}, "OUTPUT_DIR=runs/r/exact"),
    "max_parallel": (1, SEEDS, "#SBATCH --array=0-1%1"),
    "verb": ("eval", {}, "-m nemo_specrl.cli eval"),
    "runtime": ("apptainer", PYXIS, "apptainer exec"),
    "image": ("other.sif", APPTAINER, "other.sif"),
    "mounts": (("/d:/e:ro",), APPTAINER, "--bind /d:/e:ro"),
    "extra_container": (("--writable-tmpfs",), APPTAINER, "--writable-tmpfs"),
    "workdir": ("/w/$USER/x y", {}, """WORKDIR=/w/"${USER}"'/x y'"""),
    "setup": (("module load cuda",), {}, "\nmodule load cuda\n"),
    "python": ("uv run python", {}, "uv run python -m nemo_specrl.cli"),
    "ranks_per_node": (2, {}, "--nproc-per-node=2"),
    "env": ({"A": "it's"}, {}, """export A='it'"'"'s'"""),
    "export": ("NONE", {}, "#SBATCH --export=NONE"),
    "scratch": ("/local", {}, "SCRATCH=/local"),
    "port_base": (21000, {}, "PORT_BASE=21000"),
    "extra_srun": (("--mpi=none",), {}, "--mpi=none"),
    "nemo_rl_dir": ("/other", RAY, "SLURM_SUBMIT_DIR=/other"),
    "nemo_rl_command": ("uv run b.py --config 'my x.yaml'", RAY, "command=(uv run b.py --config 'my x.yaml')"),
}


def run_of(cluster: dict[str, object], trainer: str = "local", **run: object) -> RunConfig:
    values = {"name": "r", "output_dir": "runs/r", **run}
    return RunConfig(cluster=ClusterConfig(**cluster), trainer=TrainerConfig(name=trainer), **values)


def test_the_table_below_names_every_field():
    assert set(CHANGES) == {item.name for item in fields(ClusterConfig)}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_reaches_the_script(name):
    value, needs, text = CHANGES[name]
    trainer = "nemo_rl" if name.startswith("nemo_rl") else "local"
    before = run_of(needs, trainer)
    after = replace(before, cluster=replace(before.cluster, **{name: value}))
    validate_cluster(after.cluster, after)
    script = render(after, ["seed=5"])
    assert text in script
    assert script != render(before, ["seed=5"])


def test_the_script_is_pure_and_is_bash():
    for needs, trainer in [({}, "local"), (PYXIS, "local"), (APPTAINER, "local"), (RAY, "nemo_rl"), (SEEDS, "local")]:
        run = run_of({**needs, "nodes": 2}, trainer)
        script = render(run, ["a=1"])
        assert script == render(run, ["a=1"])
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_ntasks_per_node_can_be_left_out_everywhere():
    script = render(run_of({"ntasks_per_node": None}), [])
    assert "--ntasks-per-node" not in script.partition("# ---- The rest")[0]


def test_cpus_are_given_to_srun_too_and_steps_overlap():
    """snakemake-executor#41 and optimas#266: srun drops --cpus-per-task; a step waits for the batch step for ever."""
    script = render(run_of({"cpus_per_task": 8}), [])
    step = next(line for line in script.splitlines() if "exec srun" in line)
    assert "--cpus-per-task=8" in step
    assert "--overlap" in step
    assert "--kill-on-bad-exit=1" in step
    assert "export SRUN_CPUS_PER_TASK=" in script


def test_no_process_is_killed_by_pattern():
    """prime-rl#2586: pkill -f vllm killed its own srun."""
    for needs, trainer in [({}, "local"), (RAY, "nemo_rl")]:
        script = render(run_of(needs, trainer), [])
        assert "pkill" not in script
        assert "killall" not in script


def test_visible_devices_are_left_to_slurm():
    """prime-rl#1859"""
    assert "CUDA_VISIBLE_DEVICES" not in render(run_of({"gpus_per_node": 8}), [])


def test_log_is_appended_to_and_the_warning_goes_to_the_batch_shell_only():
    script = render(run_of({}), [])
    assert "#SBATCH --open-mode=append" in script
    assert "#SBATCH --signal=B:USR1@300" in script
    assert "--signal" not in render(run_of({"stop_before_end_s": 0}), []).partition("# ---- The rest")[0]


def test_explain_gives_a_reason_for_every_option():
    run = run_of({**SEEDS, "nodes": 2, "ranks_per_node": 2}, policy=PolicyConfig(tensor_parallel=2))
    lines = explain(run, [])
    options = [line for line in render(run, []).splitlines() if line.startswith("#SBATCH")]
    for option in options:
        assert any(line.startswith(option.removeprefix("#SBATCH ")) and len(line.split()) > 1 for line in lines)
    assert "layout: 4 rank(s) = 2 model-parallel x 2 data-parallel" in lines
    assert "output: runs/r/seed_1 (logs in slurm/attempt_N, slurm/latest)" in lines


@pytest.mark.parametrize("word", ["a b", "it's", 'say "x"', "$HOME", "`id`", "a\nb", "back\\slash", "name={x:1}", "ü"])
def test_overrides_arrive_as_they_were_given(word, tmp_path):
    script = render(run_of({}), [f"name={word}", "last"]).partition("# ---- The rest")[0]
    show = script + '\nprintf "%s\\0" "${overrides[@]}"'
    env = {"SLURM_SUBMIT_DIR": "/", "PATH": "/usr/bin:/bin"}
    out = subprocess.run(["bash", "-c", show], capture_output=True, env=env, check=True).stdout.decode()
    assert out.split("\0") == [f"name={word}", "last", ""]
