from __future__ import annotations

import numpy as np
import pytest

from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.contracts.sample import RewardResult, Sample
from nemo_specrl.drafting.acceptance import MIN_DRAFTS, AcceptanceFloor, acceptance_by_reward
from nemo_specrl.types import Prompt, Rollout


def counters(accepted: int, drafts: int = 100) -> SpecCounters:
    return SpecCounters(drafts, 2 * drafts, accepted + 3, (accepted, 3))


def test_warnings_become_an_error_after_so_many_steps_in_a_row() -> None:
    floor = AcceptanceFloor(0.3, patience=3)
    steps = [10, 29, 30, 0, 0, 0]
    assert [floor.verdict(counters(n)).status for n in steps] == ["warn", "warn", "pass", "warn", "warn", "fail"]


def test_the_error_names_what_was_found_and_the_causes() -> None:
    text = AcceptanceFloor(0.3, patience=1).verdict(counters(7)).text
    for word in ("7.0%", "100 drafts", "acceptance_floor=0.3", "stale", "names", "longer", "temperature", "entropy"):
        assert word in text


@pytest.mark.parametrize("spec", [SpecCounters(), counters(0, MIN_DRAFTS - 1)])
def test_steps_without_drafts_neither_count_nor_clear(spec: SpecCounters) -> None:
    floor = AcceptanceFloor(0.3, patience=2)
    assert floor.verdict(counters(0)).status == "warn"
    assert floor.verdict(spec).status == "pass"
    assert floor.verdict(counters(0)).status == "fail"


def test_no_floor_no_alarm_and_no_patience_no_error() -> None:
    assert AcceptanceFloor(0.0, patience=1).verdict(counters(0)).status == "pass"
    warns = AcceptanceFloor(0.3, patience=0)
    assert {warns.verdict(counters(0)).status for _ in range(9)} == {"warn"}


def test_drafts_that_were_never_accepted_have_no_positions() -> None:
    assert AcceptanceFloor(0.1, patience=1).verdict(SpecCounters(50, 100, 0)).status == "fail"


def sample(spec: SpecCounters | None, reward: RewardResult) -> Sample:
    ids = np.array([1], np.int32)
    rollout = Rollout("p", 0, ids, ids, np.zeros(1, np.float32), ids, "stop")
    return Sample(Prompt(ids, "", ""), rollout, spec=spec, reward=reward)


def test_acceptance_is_split_by_reward_over_counted_and_valid_rollouts() -> None:
    counted = [
        SpecCounters(4, 8, 6, (4, 2)),
        SpecCounters(5, 10, 1, (1,)),
        None,
        SpecCounters(2, 4, 3),
        SpecCounters(9, 9, 9),
    ]
    rewards = [RewardResult(1.0), RewardResult(0.0), RewardResult(1.0), RewardResult(0.5), RewardResult.failed("x")]
    assert acceptance_by_reward([sample(*pair) for pair in zip(counted, rewards, strict=True)]) == {
        "spec/drafts_rewarded": 6,
        "spec/drafted_rewarded": 12,
        "spec/accepted_rewarded": 9,
        "spec/drafts_unrewarded": 5,
        "spec/drafted_unrewarded": 10,
        "spec/accepted_unrewarded": 1,
    }
    assert acceptance_by_reward([sample(None, reward) for reward in rewards]) == {}
