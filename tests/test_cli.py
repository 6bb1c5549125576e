"""The command table: what a user sees first."""

import errno
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_specrl import cli

HEAVY = ("torch", "mlflow", "vllm", "megatron", "transformers", "nemo")


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        f"import sys; from nemo_specrl.cli import run; run(['--help']); print([m for m in {HEAVY} if m in sys.modules])"
    )
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        seconds.append(time.perf_counter() - start)
    assert out.splitlines()[-1] == "[]"
    assert min(seconds) < 1.0


def test_every_verb_is_listed() -> None:
    assert all(f"  {verb} " in cli.usage() for verb in cli.VERBS)


@pytest.mark.parametrize("verb", [name for name, verb in cli.VERBS.items() if verb.own_help])
def test_a_verb_with_options_of_its_own_explains_them(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: nemo-specrl {verb} [-h]")


def test_a_wrong_option_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["status"], ["doctor", "now"], ["preflight", "--config-name"], ["train", "--config-name"]):
        assert cli.run(args) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"nemo-specrl {args[0]}: ")
        assert err.count("\n") == 1
        assert "usage: nemo-specrl" in err


def test_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["trian"]) == 2
    assert "Did you mean train" in capsys.readouterr().err


def test_user_errors_have_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "reuse.tpok=3"]) == 2
    err = capsys.readouterr().err
    assert "reuse.topk" in err
    assert "Traceback" not in err


def test_a_librarys_value_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS, "train", cli.Verb("", lambda args: len(json.loads("not json"))))
    with pytest.raises(json.JSONDecodeError):
        cli.run(["train"])


def test_a_full_disk_is_said_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def save(args: list[str]) -> int:
        raise OSError(errno.ENOSPC, "no space left for a checkpoint; earlier checkpoints are intact")

    monkeypatch.setitem(cli.VERBS, "train", cli.Verb("", save))
    assert cli.run(["train"]) == 1
    assert capsys.readouterr().err == (
        "nemo-specrl train: no space left for a checkpoint; earlier checkpoints are intact\n"
    )


def test_the_home_of_nobody_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_SPECRL_CACHE", "~nobody-of-this-name/x")
    assert cli.run(["doctor"]) == 2
    assert "a path begins with ~" in capsys.readouterr().err


def test_a_server_that_is_required_and_not_there_has_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nemo_specrl.config.run import RunConfig
    from nemo_specrl.config.tracking import TrackingConfig
    from nemo_specrl.tracking import create_tracker

    run = RunConfig(tracking=TrackingConfig(uri="http://127.0.0.1:9", required=True))
    monkeypatch.setitem(cli.VERBS, "train", cli.Verb("", lambda _: create_tracker(run, tmp_path, resumed=False)))
    assert cli.run(["train"]) == 2
    assert "tracking.required is set" in capsys.readouterr().err


def test_dump_config_prints_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "experiment=spec_rl", "--dump-config"]) == 0
    assert "rule: lenient" in capsys.readouterr().out


def test_missing_extra_is_a_hint_not_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_torch(args: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setitem(cli.VERBS, "train", cli.Verb("", needs_torch))
    assert cli.run(["train"]) == 2
    assert "nemo-specrl[cpu]" in capsys.readouterr().err
