"""A known truth comes out of a comparison, and what cannot be known stays unsaid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_specrl.reporting import compare, load_run
from nemo_specrl.reporting.compare import Comparison
from nemo_specrl.reporting.words import favour, short, verdict

MakeRun = Callable[..., Path]


def compared(folders: list[Path], **options: object) -> Comparison:
    return compare([load_run(folder) for folder in folders], **options)  # type: ignore[arg-type]


def ratio(comparison: Comparison, name: str, arm: str = "exact") -> float:
    found = comparison.figure(name).contrasts[arm]
    assert found is not None
    return found.value


def test_speedups_count_verification_and_say_what_it_would_be_without(bench: list[Path]) -> None:
    found = compared(bench)
    assert ratio(found, "rollout_speedup") == pytest.approx(8 / 5, rel=0.03)
    assert ratio(found, "rollout_speedup_unverified") == pytest.approx(8 / 4, rel=0.03)
    assert ratio(found, "step_speedup") == pytest.approx(10 / 7, rel=0.03)
    assert ratio(found, "step_speedup_unverified") == pytest.approx(10 / 6, rel=0.03)
    assert ratio(found, "run_speedup") == pytest.approx(40 / (10 + 21), rel=0.03), (
        "the first epoch has nothing to reuse"
    )
    assert found.figure("rollout_speedup").contrasts["exact"].verdict == "higher"  # type: ignore[union-attr]


def test_headline_comes_first_and_in_order(bench: list[Path]) -> None:
    names = [figure.measure.name for figure in compared(bench).figures]
    order = ["time_to_reward", "rollout_speedup", "step_speedup", "tokens_saved", "reward", "logprob_gap"]
    assert [name for name in names if name in order] == order
    assert names[:2] == order[:2]


def test_tokens_and_reward(bench: list[Path]) -> None:
    found = compared(bench)
    saved = found.figure("tokens_saved").estimates["exact"]
    assert saved is not None
    assert saved.mean == 0.5, "a ratio of sums over the epochs that can reuse"
    reward = found.figure("reward").contrasts["exact"]
    assert reward is not None
    assert reward.verdict == "equal"
    assert reward.low is not None
    assert reward.high is not None
    assert reward.low < 0 < reward.high


def test_a_worse_reward_is_called_lower(make_run: MakeRun) -> None:
    folders = [make_run("a", s) for s in range(4)] + [make_run("b", s, reward=0.4) for s in range(4)]
    reward = compared(folders).figure("reward").contrasts["b"]
    assert reward is not None
    assert reward.verdict == "lower"


def test_one_seed_claims_nothing_and_says_so(make_run: MakeRun) -> None:
    found = compared([make_run("a"), make_run("b", generate_s=1.0)])
    assert found.figure("rollout_speedup").contrasts["b"].verdict == "unknown"  # type: ignore[union-attr]
    assert any("fewer than 3 seeds (a 1, b 1)" in note for note in found.notes)


def test_two_seeds_show_an_interval_and_claim_nothing(make_run: MakeRun) -> None:
    """The difference is tenfold, and a third seed is what lets it be claimed."""
    arms = {"a": {}, "b": {"generate_s": 1.0}}
    folders = [make_run(arm, seed, **truth) for arm, truth in arms.items() for seed in range(3)]
    two = compared([folder for folder in folders if not folder.name.endswith("-2")])
    against = two.figure("rollout_speedup").contrasts["b"]
    assert against is not None
    assert against.low is not None
    assert against.low > 1
    assert against.verdict == "unknown"
    assert verdict(two.figure("rollout_speedup"), "b") == "2 seeds: no claim"
    assert short(two, two.figure("reward"), "b").endswith("2 seeds")
    assert favour(two.figure("rollout_speedup"), "b") == ""
    assert compared(folders).figure("rollout_speedup").contrasts["b"].verdict == "higher"  # type: ignore[union-attr]


def test_missing_is_blank(make_run: MakeRun) -> None:
    found = compared([make_run("a"), make_run("b", extra={"spec/drafted": 10, "spec/accepted": 6, "spec/drafts": 4})])
    acceptance = found.figure("acceptance")
    assert acceptance.estimates["a"] is None
    assert acceptance.estimates["b"].mean == pytest.approx(0.6)  # type: ignore[union-attr]
    assert acceptance.contrasts["b"] is None
    assert found.figure("acceptance_length").estimates["b"].mean == pytest.approx(2.5)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"no figure 'tv'; there are time_to_reward, "):
        found.figure("tv")


def test_time_to_reward_is_measured_over_the_whole_run(make_run: MakeRun) -> None:
    folders = [make_run("a", noise=0.0), make_run("b", noise=0.0, generate_s=3.0)]
    found = compared(folders, goal=0.4)
    times = {arm: value.mean for arm, value in found.figure("time_to_reward").estimates.items() if value}
    assert times == {"a": pytest.approx(210.0), "b": pytest.approx(105.0)}, "21 steps of the trailing mean of two"
    never = compared(folders, goal=5.0)
    assert not [f for f in never.figures if f.measure.name == "time_to_reward"]


def test_runs_of_different_length_are_compared_where_both_are(make_run: MakeRun) -> None:
    found = compared([make_run("a", steps=40), make_run("b", steps=20, status="RUNNING")])
    assert any("compared up to step 20" in note for note in found.notes)
    assert any("not finished" in note and "RUNNING" in note for note in found.notes)
    assert found.figure("rollout_s").estimates["a"] is not None


@pytest.mark.parametrize("align", ["step", "time", "tokens"])
def test_every_alignment_gives_a_reward_and_its_curves(bench: list[Path], align: str) -> None:
    found = compared(bench, align=align)
    assert found.figure("reward").label == f"reward at equal {align}"
    curves = {curve.name: curve for curve in found.charts["reward/mean"][align]}
    assert set(curves) == {"vanilla", "exact"}
    for curve in curves.values():
        several = ~np.isnan(curve.low)
        assert several.sum() > 3
        assert (curve.low[several] <= curve.y[several] + 1e-12).all()
        assert (curve.y[several] <= curve.high[several] + 1e-12).all()


def test_at_equal_time_the_faster_arm_is_ahead(bench: list[Path]) -> None:
    reward = compared(bench, align="time").figure("reward").contrasts["exact"]
    assert reward is not None
    assert reward.verdict == "higher"


def test_differences_show_only_what_differs(make_run: MakeRun) -> None:
    base = {
        "config": {"reuse.rule": "off", "policy.lr": "1e-6"},
        "tags": {"version.vllm": "0.32", "host": "n1", "gpu": "H200"},
    }
    other = {
        "config": {"reuse.rule": "exact", "policy.lr": "1e-6", "new": "1"},
        "tags": {"version.vllm": "0.33", "gpu": "H200"},
    }
    found = compared([make_run("a", 0, **base), make_run("a", 1, **base), make_run("b", 0, **other)])
    assert found.config_diff == {"reuse.rule": {"a": "off", "b": "exact"}, "new": {"a": None, "b": "1"}}
    assert found.environment_diff == {"version.vllm": {"a": "0.32", "b": "0.33"}}


def test_seeds_of_one_arm_that_disagree_are_shown(make_run: MakeRun) -> None:
    folders = [make_run("a", seed, config={"policy.lr": lr}) for seed, lr in ((0, "1e-6"), (1, "2e-6"))]
    assert compared(folders).config_diff == {"policy.lr": {"a": "1e-6 | 2e-6"}}


def test_mistakes_are_explained(make_run: MakeRun, tmp_path: Path) -> None:
    run = load_run(make_run("a"))
    with pytest.raises(ValueError, match="nothing to compare"):
        compare([])
    with pytest.raises(ValueError, match="baseline 'z' is none of the arms: a"):
        compare([run], baseline="z")
    with pytest.raises(ValueError, match="align=epoch: must be one of step, time, tokens"):
        compare([run], align="epoch")
    with pytest.raises(ValueError, match="two runs of one seed"):
        compare([run, run])


def test_a_long_run_is_drawn_with_few_points(make_run: MakeRun) -> None:
    curves = compared([make_run("a", steps=3000, noise=0.0)]).charts["reward/mean"]["step"]
    assert len(curves[0].x) <= 240
    assert curves[0].y[-1] == pytest.approx(0.8, rel=0.01)
    assert curves[0].x[0] == pytest.approx(1, abs=10)


def test_draft_curves_by_position_by_reward_and_against_entropy(make_run: MakeRun) -> None:
    counters = {"spec/drafts": 100.0, "spec/drafted": 200.0, "spec/accepted": 90.0}
    counters |= {"spec/accepted_pos_0": 60.0, "spec/accepted_pos_1": 30.0, "draft/agreement_pos_0": 0.61}
    counters |= {"spec/drafts_rewarded": 40.0, "spec/accepted_rewarded": 60.0}
    run = load_run(make_run("mtp", 0, extra=counters))
    entropies = 2.0 - 0.9 * np.sin(np.arange(len(run)))  # up and down: the curve must not fold back
    run = replace(run, columns={**run.columns, "rollout/entropy": entropies})
    charts = compare([run]).charts
    for key, value in {
        "spec/share_pos_0": 0.6,
        "spec/share_pos_1": 0.3,
        "spec/length": 1.9,
        "spec/length_rewarded": 2.5,
        "draft/agreement_pos_0": 0.61,
    }.items():
        curve = charts[key]["entropy"][0]
        assert np.all(np.diff(curve.x) > 0)
        assert entropies.min() <= curve.x[0] <= curve.x[-1] <= entropies.max()
        assert np.allclose(curve.y, value)
        assert np.allclose(charts[key]["step"][0].y, value)
    assert not charts["spec/length_unrewarded"], "was never counted"
    assert "entropy" not in charts["reward/mean"]
