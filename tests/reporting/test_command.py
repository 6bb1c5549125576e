"""`nemo-specrl compare` from arguments to exit code, and what `bench` and `train` call."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from nemo_specrl.reporting import compare_folders, run_report
from nemo_specrl.reporting.command import compare_command
from nemo_specrl.reporting.gate import parse_condition

MakeRun = Callable[..., Path]


def test_a_folder_of_runs_becomes_a_table_a_json_and_a_page(
    bench: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, out = tmp_path / "new" / "r.html", tmp_path / "new" / "r.json"
    code = compare_command([str(bench[0].parent), "--baseline", "vanilla", "--html", str(html), "--json", str(out)])
    assert code == 0
    said = capsys.readouterr().out
    assert "rollout speedup," in said
    assert "faster" in said
    found = json.loads(out.read_text())
    assert found["figures"]["rollout_speedup"]["against_baseline"]["exact"]["verdict"] == "higher"
    assert found["figures"]["rollout_speedup"]["arms"]["vanilla"]["n"] == 3
    assert found["config_diff"] == {"reuse.rule": {"vanilla": "off", "exact": "exact"}}
    page = html.read_text()
    assert page.count("<svg") >= 5
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("rollout_speedup < 1.2", 0), ("rollout_speedup < 1.9", 1), ("exact:rollout_speedup.low < 1", 0),
        ("reward is lower", 0), ("reward is equal", 1), ("tokens_saved >= 0.5", 1), ("step_s.high > 100", 0),
        ("vanilla:step_s > 9", 1), ("nonsense", 2), ("no_such_figure < 1", 2), ("nobody:reward < 1", 2),
    ],
)  # fmt: skip
def test_fail_if(bench: list[Path], expression: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_command([*map(str, bench), "--fail-if", expression]) == code
    said = capsys.readouterr().err
    assert ("FAILED" in said) == (code == 1)
    assert ("nemo-specrl compare:" in said) == (code == 2)


def test_a_gate_on_a_missing_interval_has_not_passed(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(make_run("a")), str(make_run("b"))]
    assert compare_command([*folders, "--fail-if", "rollout_speedup.low < 1.2"]) == 1
    assert "rollout_speedup.low is missing" in capsys.readouterr().err


def test_conditions_know_arms_with_odd_names() -> None:
    condition = parse_condition("spec_rl+history=2:step_speedup.high <= 1e-1")
    assert (condition.arm, condition.name, condition.end, condition.op, condition.number) == (
        "spec_rl+history=2", "step_speedup", "high", "<=", 0.1,
    )  # fmt: skip


def test_mistakes_in_the_arguments_exit_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare_command([]) == 2
    assert compare_command([str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert compare_command(["--align", "moon", "x"]) == 2
    assert compare_command(["--help"]) == 0


def test_compare_folders_takes_the_first_arm_as_baseline(bench: list[Path]) -> None:
    out = io.StringIO()
    found = compare_folders(bench[::-1], console=Console(file=out, width=120))
    assert found.baseline == "exact"
    assert "slower" in out.getvalue()


def test_an_early_window_and_none_at_all(make_run: MakeRun) -> None:
    out = Console(file=io.StringIO())
    folders = [make_run("a", noise=0.0), make_run("b", noise=0.0, verify_s=1.0, generate_s=4.0)]
    whole = compare_folders(folders, from_epoch=1, console=out).figure("rollout_speedup").contrasts["b"]
    late = compare_folders(folders, from_epoch=9, console=out)
    assert whole is not None
    assert whole.value == pytest.approx(320 / (80 + 150))
    assert any("no run reaches epoch 9" in note for note in late.notes)


def test_the_report_of_one_run(make_run: MakeRun) -> None:
    folder = make_run("solo", config={"policy.lr": "<script>"})
    path = run_report(folder)
    page = path.read_text()
    assert path == folder / "report.html"
    assert "Rollouts" not in page, "none were logged"
    assert "&lt;script&gt;" in page
    assert "rollout seconds per step" in page
    assert "speedup" not in page, "a single run is faster than nothing"


def test_the_report_of_a_run_without_steps(make_run: MakeRun) -> None:
    page = run_report(make_run("fresh", steps=0, status="FAILED")).read_text()
    assert "no step has been recorded yet" in page
    assert "FAILED" in page
