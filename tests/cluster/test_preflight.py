from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_specrl.cluster import canary
from nemo_specrl.cluster.preflight import check, parse, preflight, render
from nemo_specrl.config.cluster import ClusterConfig
from nemo_specrl.config.compose import compose
from nemo_specrl.config.run import RunConfig


def node(name: str, **changes) -> dict:
    fit = {
        "node": name,
        "gpus": ["H100"] * 8,
        "versions": {"torch": "2"},
        "shared": "",
        "token": "t",
        "clock_offset_s": 0.0,
    }
    return {**fit, **changes}


def test_fit_nodes_have_no_faults():
    assert check([node("a"), node("b", clock_offset_s=1.5)], nodes=2, gpus=8, token="t") == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"gpus": ["H100"] * 7}, "b: sees 7 of 8 GPUs"),
        ({"shared": "Read-only file system: /x"}, "b: cannot write to the output folder: Read-only"),
        ({"token": "other"}, "must be on shared storage"),
        ({"versions": {"torch": "3"}}, "torch differs: 2 on a; 3 on b"),
        ({"versions": {}}, "torch differs: 2 on a; missing on b"),
        ({"clock_offset_s": -30.0}, "clocks differ by 30.0 s"),
    ],
)
def test_each_fault_names_the_node_or_the_difference(bad, message):
    (fault,) = check([node("a"), node("b", **bad)], nodes=2, gpus=8, token="t")
    assert message in fault


def test_a_silent_node_is_a_fault():
    """pyxis#29: only the last node was in the container."""
    (fault,) = check([node("a")], nodes=2, gpus=8, token="t")
    assert "1 of 2 nodes answered (a)" in fault
    assert check([], nodes=1, gpus=0, token="t")


def test_srun_gets_the_resources_and_the_container_but_no_batch_options():
    c = ClusterConfig(nodes=2, partition="p", gpus_per_node=4, runtime="pyxis", image="i", extra_srun=("--mpi=none",))
    text = render(RunConfig(cluster=c), "/w", "/o", "/o/f x", inside=False)
    assert "--nodes=2 --ntasks=2" in text
    for word in ("--partition=p", "--gpus-per-node=4", "--container-image=i", "--mpi=none", "'/o/f x'"):
        assert word in text
    for word in ("--signal", "--requeue", "--output", "--open-mode", "--array", "--overlap"):
        assert word not in text
    step = render(RunConfig(cluster=c), "/w", "/o", "/o/f", inside=True)
    assert "--overlap" in step
    assert "--partition" not in step


def test_reports_are_found_among_other_output():
    text = f'module loaded\n1: {canary.PREFIX}{{"node": "b"}}\n{canary.PREFIX}{{"node": "a"}}\n'
    assert [item["node"] for item in parse(text)] == ["a", "b"]


def test_canary_sees_only_the_gpus_of_the_job(fake_slurm, monkeypatch):
    lines = "".join(f"{i}, GPU-{i}abc, NVIDIA H100, 570.1\n" for i in range(8))
    fake_slurm.write("nvidia-smi", f"#!/bin/sh\nprintf '{lines}'\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert canary.gpus() == ["NVIDIA H100, driver 570.1"] * 8
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    assert len(canary.gpus()) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1abc")
    assert len(canary.gpus()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert canary.gpus() == []


def test_canary_without_a_driver_or_a_shared_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    report = canary.report(tmp_path)
    assert report["gpus"] == []
    assert "token" in report["shared"], "the missing file is named"
    (tmp_path / "token").write_text("t")
    report = canary.report(tmp_path)
    assert (report["shared"], report["token"]) == ("", "t")
    assert abs(report["clock_offset_s"]) < 1
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_the_whole_command_on_fake_nodes(fake_slurm, tmp_path, monkeypatch, capsys):
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    import sys

    words = [f"output_dir={tmp_path}/r", f"cluster.python={sys.executable}", "cluster.stop_before_end_s=0"]
    assert preflight(compose(words)) == 0
    assert "1 node(s) are fit" in capsys.readouterr().out
    assert os.listdir(tmp_path / "r") == []
    assert preflight(compose([*words, "cluster.nodes=2"])) == 1
    assert "1 of 2 nodes answered" in capsys.readouterr().err
