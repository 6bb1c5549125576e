"""Which tokens a short vocabulary holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.head import HeadConfig
from nemo_specrl.drafting import make_drafter
from nemo_specrl.drafting.token_counts import TokenCounts
from nemo_specrl.types import Rollout


def rollout(*token_ids: int) -> Rollout:
    ids = np.array(token_ids, np.int32)
    zeros = np.zeros(len(ids))
    return Rollout("p", 0, ids[:1], ids, zeros.astype(np.float32), zeros.astype(np.int32), "stop")


def test_the_most_frequent_tokens_come_first_then_the_lowest_ids() -> None:
    counts = TokenCounts()
    assert counts.most_frequent(3, 10).tolist() == [0, 1, 2]
    counts.observe([])
    counts.observe([rollout(9, 9, 5)])
    counts.observe([rollout(5, 7, 5), rollout(2)])
    assert counts.most_frequent(2, 10).tolist() == [5, 9]
    assert counts.most_frequent(5, 10).tolist() == [0, 2, 5, 7, 9]
    assert counts.most_frequent(99, 10).tolist() == list(range(10))
    assert counts.most_frequent(2, 8).tolist() == [2, 5], "ids above the vocabulary are not drafted"


def test_a_head_with_a_short_vocabulary_is_sent_a_list() -> None:
    def extras(config: DrafterConfig, vocab_size: int = 10) -> dict[str, list[int]]:
        drafter = make_drafter(config)
        drafter.observe([rollout(4, 4, 6)])
        return {name: ids.tolist() for name, ids in drafter.refit_extras(vocab_size).items()}

    mtp = DrafterConfig(method="mtp", head=HeadConfig(vocabulary=2))
    assert extras(mtp) == {"shortlist": [4, 6]}
    assert extras(mtp, 2) == {}, "a list of everything is no list"
    assert extras(DrafterConfig(head=mtp.head)) == {}, "there is no head to give it to"
    assert extras(DrafterConfig(method="mtp")) == {}


def test_counts_outlive_the_process(tmp_path: Path) -> None:
    counts, later = TokenCounts(), TokenCounts()
    counts.observe([rollout(9, 9, 5)])
    counts.save(tmp_path)
    later.load(tmp_path)
    for some in (counts, later):
        some.observe([rollout(5, 5, 7)])
    assert later.most_frequent(2, 10).tolist() == counts.most_frequent(2, 10).tolist() == [5, 9]
    (tmp_path / "empty").mkdir()
    later.load(tmp_path / "empty")  # a checkpoint from before there were counts
    assert later.most_frequent(1, 10).tolist() == [5]
