"""The draft head's short vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_specrl.rollout.vllm.shortlist import Shortlist, install, watch_rows


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


def test_the_engine_side_keeps_the_parameters_dtype() -> None:
    draft = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
    install(draft, np.array([1], np.int32), torch.ones(1, 2), 3)
    assert draft.compute_logits(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16  # type: ignore[operator]
