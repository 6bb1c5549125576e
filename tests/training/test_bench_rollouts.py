"""The rollout bench: what is compared, that every arm starts from the same state, and that it resumes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from nemo_specrl.config.compose import compose
from nemo_specrl.config.run import RunConfig
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.training import bench_rollouts
from nemo_specrl.training.bench_rollouts import (
    RESULTS,
    Recording,
    check_arms,
    measure,
    measure_all,
    recording_overrides,
    rotated,
)
from nemo_specrl.training.plan import StepPlan
from nemo_specrl.types import Prompt
from tests.rollout.toy import ToyEngine, ToyPolicy, random_table, toy_generator

ROOT = Path(__file__).parents[2]
EOS, VOCAB = 3, 4
COMMON = [
    "bench.kind=rollouts",
    "sampling.max_new_tokens=6",
    "algorithm.group_size=2",
    "bench.repeats=2",
    "reuse.topk=4",
]


class Engine(ToyEngine):
    """Counts its refits."""

    refits = 0
    sent: tuple[Any, ...] = ()

    def refit(self, weights: Any, version: int, extras: Any = None) -> None:
        self.refits += 1
        self.extras = extras
        self.sent = tuple(weights)


def arm(*overrides: str) -> RunConfig:
    return compose([*COMMON, *overrides])


def recording() -> Recording:
    """Four prompts; the cache holds an epoch of the old policy."""
    old, new = random_table(1), random_table(2)
    prompts = [Prompt(np.array([0, i % 3, i], np.int32) % VOCAB, "", "") for i in range(4)]
    cache = RolloutCache(2**20)
    draw = toy_generator(arm("reuse=exact"), ToyPolicy(old, EOS), ToyEngine(old, EOS), cache)
    for rollout in draw.rollouts(prompts, step=1, epoch=1, version=0).rollouts:
        cache.put(rollout, 1)
    model: Any = SimpleNamespace(eos_token_ids=[EOS], vocab_size=VOCAB)
    return Recording(model, ToyPolicy(new, EOS, version=1), cache, StepPlan(2, 2, (0, 1, 2, 3)), prompts)


def test_the_recorded_training_has_the_policys_law_and_every_rules_candidates() -> None:
    overrides = recording_overrides(["experiment=spec_rl_history"], {"a": arm(), "b": arm("reuse.topk=30")}, Path("/x"))
    run = compose(overrides)
    assert run.reuse.topk == 30
    assert (run.reuse.rule, run.drafter.method, run.trainer.epochs, run.output_dir) == ("exact", "off", 1, "/x")


def test_arms_may_differ_in_reuse_and_drafting_only() -> None:
    check_arms({"a": arm(), "b": arm("experiment=exact_history")})
    with pytest.raises(ValueError, match="b differs from a in sampling"):
        check_arms({"a": arm(), "b": arm("sampling.temperature=0.6")})
    with pytest.raises(ValueError, match="from_epoch"):
        check_arms({"a": arm("bench.from_epoch=1")})


def test_a_draft_head_comes_warm_and_with_every_refit() -> None:
    check_arms({"a": arm(), "b": arm("drafter=mtp", "drafter.head.source=/some/head")})
    with pytest.raises(ValueError, match="b: bench.kind=rollouts trains no draft head"):
        check_arms({"a": arm(), "b": arm("drafter=mtp")})
    engine = Engine(random_table(2), EOS)
    measure(recording(), arm(), engine, "b", 1, 0, [("model.mtp_layers.0.x", np.zeros(1))])  # type: ignore[list-item]
    assert [name for name, _ in engine.sent] == ["model.mtp_layers.0.x"]
    assert engine.extras == {}
    measure(recording(), arm("drafter=mtp", "drafter.head.vocabulary=2"), engine, "b", 1, 0)
    assert len(engine.extras["shortlist"]) == 2


def test_another_arm_goes_first_each_time() -> None:
    assert [rotated([1, 2, 3], repeat)[0] for repeat in range(4)] == [1, 2, 3, 1]


def test_an_arm_draws_whole_groups_with_fresh_numbers_and_leaves_the_recording_as_it_was() -> None:
    state, run = recording(), arm("reuse=exact", "bench.rollouts_per_slot=3")
    before = [(epoch, rollout.token_ids.tolist()) for epoch, rollout in state.cache]
    engine = Engine(random_table(2), EOS)
    first, again, other = (measure(state, run, engine, "exact", 1, repeat) for repeat in (0, 0, 1))
    assert first.values["rollout/count"] == 4, "three rollouts are two groups of two"
    counts = [{k: v for k, v in m.values.items() if not k.startswith("time/")} for m in (first, again, other)]
    assert counts[0] == counts[1]
    assert counts[0] != counts[2]
    assert first.values["time/rollout_s"] >= first.values["time/verify_s"] > 0
    assert engine.refits == 3, "each measurement begins with an empty prefix cache"
    assert [(epoch, rollout.token_ids.tolist()) for epoch, rollout in state.cache] == before


def test_an_arm_finds_the_candidates_that_it_would_have_kept() -> None:
    """At K = 1 most draft tokens are outside S; lenient as published keeps no candidates, and rejects none for that."""
    state, engine = recording(), Engine(random_table(2), EOS)
    one, four, published = (
        measure(state, arm(*rule), engine, "x", 8, 0).values
        for rule in (["reuse=exact", "reuse.topk=1"], ["reuse=exact"], ["reuse=lenient"])
    )
    assert one["reuse/tail_mass"] > 0.2
    assert four["reuse/tail_mass"] == published["reuse/tail_mass"] == 0
    assert one["reuse/acceptance"] < four["reuse/acceptance"] < published["reuse/acceptance"]


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[int, list[str]]] = []

    @contextmanager
    def engines(runs: Any, drafters: Any, recording: Any, slots: int, root: Path) -> Iterator[dict[str, Any]]:
        started.append((slots, sorted({d.method for d in drafters})))
        yield {repr(d): (Engine(random_table(2), EOS), []) for d in drafters}

    monkeypatch.setattr(bench_rollouts, "start_engines", engines)
    monkeypatch.setattr(bench_rollouts, "load_recording", lambda folder, from_epoch: recording())
    runs = {name: arm(f"experiment={name}", "bench.slots=[1,2]") for name in ("vanilla", "exact_history")}
    console = Console(file=io.StringIO())
    found = measure_all(runs, tmp_path, console)
    assert len(found) == 2 * 2 * 2
    assert started == [(1, ["history", "off"]), (2, ["history", "off"])]
    lines = (tmp_path / RESULTS).read_text().splitlines()
    (tmp_path / RESULTS).write_text("\n".join(lines[:-1]) + "\n")
    assert {(m.arm, m.slots, m.repeat) for m in measure_all(runs, tmp_path, console)} == {
        (m.arm, m.slots, m.repeat) for m in found
    }
    assert len(started) == 3, "only what was missing"
    assert started[-1][1] == [runs[json.loads(lines[-1])["arm"]].drafter.method]


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_whole_bench_on_the_tiny_model(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "nemo_specrl.cli", "bench", "bench.kind=rollouts", "model=tiny", "data.size=4",
        "data.digits=[1,1]", "algorithm.group_size=2", "algorithm.prompts_per_step=4", "sampling.max_new_tokens=12",
        "policy.dtype=fp32", "engine.dtype=fp32", "engine.kv_cache_gib=0.1", "tracking=spool", "gate.samples=64",
        "experiment=vanilla,exact", "bench.repeats=1", "bench.slots=[2]", f"output_dir={tmp_path}",
    ]  # fmt: skip
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    vanilla, exact = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert vanilla["rollouts"] == exact["rollouts"] == 8
    assert vanilla["reused"] == 0 < exact["reused"]
    assert exact["speed"]["verdict"] == "unknown"
    assert "<svg" in (tmp_path / "report.html").read_text()
