"""The job script, run for real under fake Slurm commands."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_specrl.cluster.sbatch import render
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.trainer import TrainerConfig

STAND_IN = Path(__file__).with_name("stand_in.py")
ROOT = STAND_IN.parents[2]


def script(
    folder: Path, payload: str | None = None, overrides: tuple[str, ...] = (), trainer="local", **cluster
) -> str:
    """A job script whose Python is the stand-in trainer, or a line of shell."""
    trainer_words = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(STAND_IN)]
    python = shlex.join(trainer_words if payload is None else ["bash", "-c", payload])
    cluster = {"python": python, "scratch": str(folder.parent), **cluster}
    run = RunConfig(
        name="r",
        output_dir=str(folder),
        trainer=TrainerConfig(name=trainer),
        cluster=ClusterConfig(**cluster),
    )
    return render(run, [f"output_dir={folder}", *overrides])


def attempt(folder: Path, number: int = 1) -> Path:
    return folder / "slurm" / f"attempt_{number}"


def test_a_finished_run_leaves_its_log_and_no_scratch(fake_slurm, hostile_path):
    overrides = ("steps=2", "step_s=0")
    code, text = fake_slurm.run(script(hostile_path, overrides=overrides), hostile_path.parent)
    assert code == 0, text
    assert "finished" in text
    assert (hostile_path / "checkpoint").read_text() == "2"
    assert (hostile_path / "slurm" / "latest").resolve() == attempt(hostile_path).resolve()
    assert (attempt(hostile_path) / "exit_code").read_text() == "0\n"
    assert not list(hostile_path.parent.glob("nemo-specrl-*"))
    assert not fake_slurm.calls("sbatch")


def test_a_step_sees_job_facts_under_our_own_names(fake_slurm, tmp_path):
    shown = "env > $NEMO_SPECRL_ATTEMPT_DIR/env; pwd > $NEMO_SPECRL_ATTEMPT_DIR/pwd; ls -d $TMPDIR > /dev/null"
    env = {"FAKE_END": "2030-01-01T04:00:00", "SLURM_CPUS_PER_TASK": "8", "SLURM_RESTART_COUNT": "3", "TZ": "UTC"}
    path = tmp_path / "shown.sh"
    path.write_text(shown)
    code, text = fake_slurm.run(
        script(tmp_path / "r", python=f"bash {path}", time="4:00:00", env={"MINE": "a b"}), tmp_path, **env
    )
    assert code == 0, text
    seen = dict(
        line.split("=", 1) for line in (attempt(tmp_path / "r") / "env").read_text().splitlines() if "=" in line
    )
    assert seen["NEMO_SPECRL_JOB_ID"] == "4242"
    assert seen["NEMO_SPECRL_JOB_START_TIME"] == "1893456000"
    assert seen["NEMO_SPECRL_JOB_END_TIME"] == str(1893456000 + 4 * 3600)
    assert seen["NEMO_SPECRL_RESTART_COUNT"] == "3"
    assert seen["SRUN_CPUS_PER_TASK"] == "8"
    assert seen["MASTER_ADDR"] == "127.0.0.1"
    assert int(seen["MASTER_PORT"]) == 20000 + 16 * (4242 % 500)
    assert seen["MINE"] == "a b"
    for cache in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT"):
        assert seen[cache].startswith(f"{tmp_path}/nemo-specrl-{os.getuid()}-4242/")


def shown_environment(fake_slurm, folder: Path, *, job: dict[str, str], **cluster) -> dict[str, str]:
    """What the payload of a job with these variables sees."""
    path = folder / "shown.sh"
    path.write_text("env > $NEMO_SPECRL_ATTEMPT_DIR/env")
    code, text = fake_slurm.run(script(folder / "r", python=f"bash {path}", **cluster), folder, **job)
    assert code == 0, text
    lines = (attempt(folder / "r") / "env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("export", ["NONE", "HOME,PATH"])
def test_the_payload_gets_what_the_job_sets_whatever_is_exported_to_the_job(fake_slurm, tmp_path, export):
    """The step lost MASTER_ADDR, and with the attempt's folder a stop under torchrun became exit code 1."""
    job = {"SLURM_EXPORT_ENV": export, "SRUN_EXPORT_ENV": export}
    seen = shown_environment(fake_slurm, tmp_path, job=job, export=export, env={"MINE": "a"}, setup=("export S=1",))
    assert (seen["MASTER_ADDR"], seen["MINE"], seen["S"]) == ("127.0.0.1", "a", "1")
    assert seen["NEMO_SPECRL_ATTEMPT_DIR"] == str(attempt(tmp_path / "r"))


@pytest.mark.parametrize("export", ["NONE", "PATH"])
def test_a_stop_under_torchrun_stays_a_stop_whatever_is_exported(fake_slurm, tmp_path, export):
    path = tmp_path / "torchrun.py"  # what torchrun does with the trainer's exit code
    path.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport os; os.environ['WORLD_SIZE'] = '2'\n"
        "from nemo_specrl.training.signals import hand_over\nsys.exit(1 if hand_over('SIGUSR1') else 0)\n"
    )
    text = script(tmp_path / "r", python=f"{sys.executable} {path}", export=export)
    code, output = fake_slurm.run(text, tmp_path, SLURM_EXPORT_ENV=export)
    assert code == 85, output
    assert [call["argv"][1] for call in fake_slurm.calls("scontrol")][-1] == "requeue"


def test_a_script_that_is_submitted_from_inside_a_job_forgets_it(fake_slurm, tmp_path):
    """A mask of the submitter's CPUs pinned the job; its ranks and its times are not this job's either."""
    left = {"SLURM_CPU_BIND": "mask_cpu:0x1", "SLURM_CPU_BIND_LIST": "0x1", "SLURM_STEP_ID": "5", "PMIX_RANK": "3"}
    left |= {"WORLD_SIZE": "4", "RANK": "2", "MASTER_PORT": "1", "SRUN_CPUS_PER_TASK": "64", "SBATCH_QOS": "x"}
    times = {"SLURM_JOB_END_TIME": "123", "SLURM_JOB_START_TIME": "122", "TZ": "UTC"}
    seen = shown_environment(fake_slurm, tmp_path, job=left | times | {"FAKE_END": "2030-01-01T04:00:00"})
    assert not (left.keys() - {"MASTER_PORT", "SBATCH_QOS"}) & seen.keys()
    assert int(seen["MASTER_PORT"]) == 20000 + 16 * (4242 % 500)
    assert seen["NEMO_SPECRL_JOB_END_TIME"] == str(1893456000 + 4 * 3600)
    assert seen["NEMO_SPECRL_JOB_START_TIME"] == "1893456000"


def test_an_unlimited_job_does_not_take_over_a_stale_end(fake_slurm, tmp_path):
    seen = shown_environment(fake_slurm, tmp_path, job={"SLURM_JOB_END_TIME": "123", "FAKE_END": "Unknown"})
    assert seen["NEMO_SPECRL_JOB_END_TIME"] == ""


def port_of(folder: Path) -> int:
    return int((attempt(folder) / "port").read_text())


def test_jobs_whose_ids_would_share_ports_do_not(fake_slurm, tmp_path):
    """Three jobs on a node, 500 apart, before any listens; after the last block comes the first."""
    path = tmp_path / "p.sh"
    path.write_text("echo $MASTER_PORT > $NEMO_SPECRL_ATTEMPT_DIR/port; while [ ! -e go ]; do sleep 0.1; done")
    jobs = {}
    for job in (999, 1499, 1999):
        here = tmp_path / str(job)
        here.mkdir()
        jobs[job] = fake_slurm.start(
            script(here / "r", python=f"bash {path}", scratch=str(tmp_path)), here, SLURM_JOB_ID=str(job)
        )
    end = time.monotonic() + 60
    while not all((attempt(tmp_path / str(job) / "r") / "port").exists() for job in jobs):
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.2)
    ports = sorted(port_of(tmp_path / str(job) / "r") for job in jobs)
    assert ports == [20000, 20016, 20000 + 16 * 499]
    for job, process in jobs.items():
        (tmp_path / str(job) / "go").touch()
        process.communicate(timeout=60)
    assert not list(tmp_path.glob("nemo-specrl-*")), "no lock is left"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_port_that_somebody_listens_on_is_passed_over(fake_slurm, tmp_path, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    base = 24000
    with socket.socket(family) as other:
        other.bind((address, base + 16 * 7 + 15))
        other.listen()
        seen = shown_environment(fake_slurm, tmp_path, job={"SLURM_JOB_ID": "507"}, port_base=base)
    assert int(seen["MASTER_PORT"]) == base + 16 * 8


def test_the_head_is_the_first_of_the_expanded_nodes(fake_slurm, tmp_path):
    """verl's ray_on_slurm.slurm: the "first node" held all names."""
    path = tmp_path / "shown.sh"
    path.write_text('echo "$MASTER_ADDR $@" > $NEMO_SPECRL_ATTEMPT_DIR/head')
    code, text = fake_slurm.run(
        script(tmp_path / "r", python=f"bash {path}", nodes=2, ranks_per_node=4),
        tmp_path,
        FAKE_NODES="gpu1.cluster.local,gpu2.cluster.local",
        SLURM_JOB_NODELIST="gpu[1-2].cluster.local",
    )
    assert code == 0, text
    head = (attempt(tmp_path / "r") / "head").read_text()
    assert head.startswith("10.0.0.1 -m torch.distributed.run --nnodes=2 --nproc-per-node=4 --master-addr=10.0.0.1")
    shown = [call["argv"] for call in fake_slurm.calls("scontrol") if call["argv"][1:3] == ["show", "node"]]
    assert shown[0][3] == "gpu1.cluster.local"
    (step,) = [call["argv"] for call in fake_slurm.calls("srun") if "--label" in call["argv"]]
    assert {"--nodes=2", "--ntasks=2", "--kill-on-bad-exit=1", "--overlap"} <= set(step)


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_the_warning_stops_the_trainer_at_a_step_and_the_job_is_requeued(fake_slurm, tmp_path, name):
    folder = tmp_path / "r"
    text = script(folder, overrides=("steps=200", "step_s=0.1"), signal=name)
    process = fake_slurm.start(text, tmp_path)
    while not (folder / "checkpoint").exists():
        time.sleep(0.05)
    process.send_signal(signal.Signals[f"SIG{name}"])
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 85, output
    done = int((folder / "checkpoint").read_text())
    assert 1 <= done < 200
    assert [call["argv"] for call in fake_slurm.calls("scontrol")][-1] == ["scontrol", "requeue", "4242"]
    assert (attempt(folder) / "requeue").read_text() == "SIGUSR1\n"
    code, output = fake_slurm.run(script(folder, overrides=(f"steps={done + 2}", "step_s=0")), tmp_path)
    assert code == 0, output
    steps = [int(line.split()[0]) for line in (folder / "steps.log").read_text().splitlines()]
    assert steps == list(range(1, done + 3)), "no step lost, none doubled"


def test_a_warning_during_the_setup_is_kept_for_the_trainer(fake_slurm, tmp_path):
    """Slurm signals up to a minute early; the shell died of it (seen on 22.05)."""
    folder = tmp_path / "r"
    setup = (f"touch {tmp_path}/setting_up", "sleep 1")
    process = fake_slurm.start(script(folder, overrides=("steps=600", "step_s=0.1"), setup=setup), tmp_path)
    while not (tmp_path / "setting_up").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 85, output
    assert "got USR1 before the start" in output
    assert 1 <= int((folder / "checkpoint").read_text()) < 600


def test_a_cancelled_job_does_not_come_back(fake_slurm, tmp_path):
    code, text = fake_slurm.run(script(tmp_path / "r", payload="exit 85"), tmp_path, FAKE_STATE="COMPLETING")
    assert code == 85
    assert "COMPLETING: not started again" in text
    assert not [call for call in fake_slurm.calls("scontrol") if call["argv"][1] == "requeue"]
    assert not fake_slurm.calls("sbatch")


@pytest.mark.parametrize("how", ["off", "refused"])
def test_where_requeue_is_off_a_follow_up_job_is_submitted(fake_slurm, hostile_path, how):
    text = script(hostile_path, payload="exit 85", requeue=how == "refused")
    env = {"FAKE_REQUEUE": how, "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "4240", "SLURM_MEM_PER_NODE": "100"}
    code, output = fake_slurm.run(text, hostile_path.parent, **env, SLURM_CONF="/c", SBATCH_PARTITION="p")
    assert code == 85, output
    (call,) = fake_slurm.calls("sbatch")
    log = str(hostile_path / "slurm").replace("%", "%%") + "/slurm-%j.log"
    copy = str(attempt(hostile_path) / "job.sh")
    expected = ["sbatch", "--parsable", "--dependency=afterany:4240_3", "--array=3", f"--output={log}", copy]
    assert call["argv"] == expected
    assert [name for name in call["env"] if name.startswith(("SLURM", "SBATCH"))] == ["SLURM_CONF"]
    assert Path(copy).read_text() == text
    env |= {"SLURM_JOB_ID": "4243", "SLURM_ARRAY_JOB_ID": "4243"}
    code, output = fake_slurm.run(text, hostile_path.parent, **env)
    assert (attempt(hostile_path, 2) / "root").read_text() == "4240_3\n", "it belongs to the first job's count"


def test_the_last_task_of_an_array_asks_about_itself_and_not_about_the_array(fake_slurm, tmp_path):
    """Its SLURM_JOB_ID is the array's id: requeue of that restarted every task (seen on 22.05)."""
    env = {"SLURM_JOB_ID": "4242", "SLURM_ARRAY_JOB_ID": "4242", "SLURM_ARRAY_TASK_ID": "1"}
    code, output = fake_slurm.run(script(tmp_path / "r", payload="exit 85"), tmp_path, **env)
    assert code == 85, output
    asked = [c["argv"] for name in ("scontrol", "squeue") for c in fake_slurm.calls(name)]
    asked = [words for words in asked if words[1:3] not in (["show", "hostnames"], ["show", "node"])]
    assert ["scontrol", "requeue", "4242_1"] in asked
    assert all("4242_1" in words for words in asked)


def test_a_crash_is_a_failure_with_its_log_and_without_a_retry(fake_slurm, tmp_path):
    code, text = fake_slurm.run(script(tmp_path / "r", payload="echo boom >&2; exit 7"), tmp_path)
    assert code == 7
    assert "failed with exit code 7" in text
    assert "boom" in text
    assert len(fake_slurm.calls("scontrol")) == len([c for c in fake_slurm.calls("scontrol") if c["argv"][1] == "show"])


def test_crash_loops_are_bounded(fake_slurm, tmp_path):
    text = script(tmp_path / "r", payload="exit 7", crash_retries=2)
    requeues = []
    for _ in range(4):
        code, _ = fake_slurm.run(text, tmp_path)
        assert code == 7
        requeues.append(len([call for call in fake_slurm.calls("scontrol") if call["argv"][1] == "requeue"]))
    assert requeues == [1, 2, 2, 2]


def test_attempts_are_bounded_whatever_ended_them(fake_slurm, tmp_path):
    text = script(tmp_path / "r", payload="exit 85", max_attempts=2)
    outputs = [fake_slurm.run(text, tmp_path) for _ in range(3)]
    assert "requeue" in outputs[0][1]
    assert "this was the last of 2 attempts" in outputs[1][1]
    assert outputs[2][0] == 1
    assert "giving up" in outputs[2][1]
    _, output = fake_slurm.run(text, tmp_path, SLURM_JOB_ID="5000")
    assert "giving up" not in output, "a new submission counts anew"


def test_under_torchrun_a_file_says_requeue(fake_slurm, tmp_path):
    """torchrun reports every failed worker as 1."""
    payload = "echo SIGUSR1 > $NEMO_SPECRL_ATTEMPT_DIR/requeue"
    path = tmp_path / "p.sh"
    path.write_text(payload)
    code, output = fake_slurm.run(script(tmp_path / "r", python=f"bash {path}"), tmp_path)
    assert code == 85
    assert "stopped early with a checkpoint: SIGUSR1" in output


def test_array_tasks_have_their_own_folders_and_overrides(fake_slurm, tmp_path):
    path = tmp_path / "p.sh"
    path.write_text('printf "%s\\n" "$@" > $NEMO_SPECRL_ATTEMPT_DIR/words')
    text = script(tmp_path / "r", python=f"bash {path}", seeds=(5, 6), arms=("reuse=off", "reuse=exact"))
    code, output = fake_slurm.run(text, tmp_path, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_JOB_ID="4240")
    assert code == 0, output
    words = (attempt(tmp_path / "r" / "exact" / "seed_6") / "words").read_text().split()
    mine = ["reuse=exact", "name=exact", "seed=6", f"output_dir={tmp_path}/r/exact/seed_6"]
    assert words[-5:] == [*mine, f"tracking.sweep={tmp_path}/r"]


def test_a_failing_setup_line_stops_the_job_before_the_payload(fake_slurm, tmp_path):
    code, _ = fake_slurm.run(script(tmp_path / "r", payload="exit 0", setup=("module load cuda",)), tmp_path)
    assert code != 0
    assert not fake_slurm.calls("srun")


def test_ray_sub_is_called_as_it_is_with_job_scoped_container_names(fake_slurm, tmp_path):
    """NeMo-RL#4066; and ray.sub unsets every SLURM_ variable before the driver."""
    rl = tmp_path / "nemo rl"
    rl.mkdir()
    (rl / "ray.sub").write_text(
        'srun --container-name=ray-head --container-image="$CONTAINER" true\n'
        'pwd > "$BASE_LOG_DIR/pwd"; echo "$SLURM_SUBMIT_DIR $GPUS_PER_NODE $MOUNTS" > "$BASE_LOG_DIR/facts"\n'
        'for v in $(compgen -e | grep "^SLURM_"); do unset "$v"; done; echo "$COMMAND" > c.sh; bash c.sh\n'
    )
    path = tmp_path / "p.sh"
    path.write_text('echo "$NEMO_SPECRL_JOB_ID ${SLURM_JOB_ID:-unset} $*" > $NEMO_SPECRL_ATTEMPT_DIR/driver; exit 85')
    text = script(
        tmp_path / "r",
        trainer="nemo_rl",
        runtime="pyxis",
        image="i.sqsh",
        gpus_per_node=8,
        nemo_rl_dir=str(rl),
        nemo_rl_command=f"bash {path} --config 'x y.yaml'",
    )
    code, output = fake_slurm.run(text, tmp_path)
    assert code == 85, output
    (call,) = fake_slurm.calls("srun")
    assert call["argv"] == ["srun", "--container-name=ray-head-4242", "--container-image=i.sqsh", "true"]
    assert (attempt(tmp_path / "r") / "pwd").read_text() == f"{rl}\n"
    out = tmp_path / "r"
    assert (attempt(out) / "facts").read_text() == f"{rl} 8 {tmp_path}:{tmp_path},{out}:{out},{rl}:{rl}\n"
    driver = (attempt(out) / "driver").read_text()
    assert driver == "4242 unset --config x y.yaml\n"
    assert [c["argv"][1] for c in fake_slurm.calls("scontrol")][-1] == "requeue"


def test_the_user_signal_is_not_sent_into_ray(fake_slurm, tmp_path):
    rl = tmp_path / "rl"
    rl.mkdir()
    (rl / "ray.sub").write_text('touch "$BASE_LOG_DIR/up"; sleep 1; exit 3\n')
    cluster = {"runtime": "pyxis", "image": "i", "gpus_per_node": 8, "nemo_rl_dir": str(rl), "nemo_rl_command": "true"}
    process = fake_slurm.start(script(tmp_path / "r", payload="", trainer="nemo_rl", **cluster), tmp_path)
    while not (attempt(tmp_path / "r") / "up").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 3


def test_shipped_shell_has_no_syntax_that_old_bash_lacks():
    """RHEL 8 has bash 4.4: no `wait -n ID`, no ${var@U}."""
    from nemo_specrl.cluster.batch_shell import BATCH_SHELL

    assert "wait -n" not in BATCH_SHELL
    assert subprocess.run(["bash", "-n"], input=BATCH_SHELL, text=True).returncode == 0
