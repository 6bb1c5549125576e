"""The draft head's short vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.head import HeadConfig
from nemo_specrl.rollout.vllm.shortlist import Shortlist, TokenCounts, install, watch_rows
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


@pytest.mark.parametrize(("tied", "name"), [(True, "model.embed_tokens.weight"), (False, "lm_head.weight")])
def test_a_shortlist_gives_the_full_heads_logits_on_its_tokens_only(tied: bool, name: str) -> None:
    torch.manual_seed(0)
    full, hidden = torch.randn(12, 4), torch.randn(3, 4)
    other = torch.randn(12, 4)
    sent = {"model.embed_tokens.weight": other, "lm_head.weight": other} | {name: full}
    if tied:
        del sent["lm_head.weight"]
    ids = np.array([1, 5, 6, 11], np.int32)
    kept: list[torch.Tensor] = []
    assert list(watch_rows(sent.items(), ids, tied, kept)) == list(sent.items())
    draft = torch.nn.Linear(1, 1)
    install(draft, ids, kept[0], 12)
    logits = draft.compute_logits(hidden)  # type: ignore[operator]
    torch.testing.assert_close(logits[:, ids.tolist()], (hidden @ full.T)[:, ids.tolist()])
    others = [i for i in range(12) if i not in ids]
    assert bool((logits[:, others] == -torch.inf).all())
    assert isinstance(draft.compute_logits, Shortlist)


def test_a_head_with_a_short_vocabulary_gets_a_list() -> None:
    counts = TokenCounts()
    counts.observe([rollout(4, 4, 6)])
    mtp = DrafterConfig(method="mtp", head=HeadConfig(vocabulary=2))
    found = counts.shortlist(mtp, 10)
    assert found is not None
    assert found.tolist() == [4, 6]
    assert counts.shortlist(mtp, 2) is None, "a list of everything is no list"
    assert counts.shortlist(DrafterConfig(head=mtp.head), 10) is None, "there is no head to give it to"
    assert counts.shortlist(DrafterConfig(method="mtp"), 10) is None


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


def test_the_engine_side_keeps_the_parameters_dtype() -> None:
    draft = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    install(draft, np.array([1], np.int32), torch.ones(1, 2), 3)
    assert draft.compute_logits(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16  # type: ignore[operator]
