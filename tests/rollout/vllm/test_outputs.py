from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.rollout.vllm.outputs import LogprobError, completion, counters, response_logprobs

INF = float("inf")


def output(token_ids: list[int], ids: list[int], logprobs: list[float], finish: str = "stop") -> Any:
    flat = SimpleNamespace(token_ids=ids, logprobs=logprobs)
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=token_ids, finish_reason=finish, logprobs=flat)])


def test_columns_are_the_sampled_token_and_the_top_k() -> None:
    got = completion(output([7, 4], [7, 3, 7, 4, 4, 9], [-2.0, -0.5, -2.0, 0.0, 0.0, -INF]), topk=2)
    assert got.token_ids.tolist() == [7, 4]
    assert got.logprobs.tolist() == [-2.0, 0.0]
    assert got.topk is not None
    assert got.topk.ids.tolist() == [[3, 7], [4, -1]], "no mass: id -1"
    assert got.topk.logprobs.tolist() == [[-0.5, -2.0], [0.0, -INF]]


def test_the_top_k_does_not_depend_on_the_draw_when_tokens_tie() -> None:
    law = ([3, 8], [-0.7, -1.4])  # a token 9 ties with token 8 and was drawn
    drawn = completion(output([9], [9, *law[0]], [-1.4, *law[1]]), topk=2).topk
    other = completion(output([3], [3, *law[0]], [-0.7, *law[1]]), topk=2).topk
    assert drawn is not None
    assert other is not None
    assert np.array_equal(drawn.ids, other.ids)


@pytest.mark.parametrize(
    "bad",
    [
        output([7], [7], [float("nan")]),
        output([7], [7], [-INF]),
        output([7], [7], [0.3]),
        output([7], [8], [-1.0]),
        output([7, 8], [7], [-1.0]),
        output([7], [7, 8], [-1.0, -2.0]),
    ],
)
def test_impossible_log_probabilities_are_refused(bad: Any) -> None:
    with pytest.raises(LogprobError):
        completion(bad, topk=0)


def test_an_aborted_request_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="abort"):
        completion(output([7], [7], [-1.0], finish="abort"), topk=0)


def prompt(ids: list[int], scored: list[int], logprobs: list[float], cached: int = 0) -> Any:
    flat = SimpleNamespace(token_ids=scored, logprobs=logprobs)
    return SimpleNamespace(prompt_token_ids=ids, prompt_logprobs=flat, num_cached_tokens=cached)


def test_only_the_response_is_scored() -> None:
    row = prompt([5, 6, 7], [6, 7], [-1.0, -2.0])
    assert response_logprobs(row, 1).tolist() == [-2.0]
    assert response_logprobs(row, 2).tolist() == [-1.0, -2.0]
    assert response_logprobs(row, 0).tolist() == []


def test_scores_from_the_prefix_cache_are_refused() -> None:
    with pytest.raises(LogprobError, match="prefix cache"):
        response_logprobs(prompt([5, 6], [6], [-1.0], cached=1), 1)
    with pytest.raises(LogprobError, match="1 prompt"):
        response_logprobs(prompt([5, 6, 7], [7], [-1.0]), 1)


def test_counters_add_up_over_engines() -> None:
    def metric(name: str, **values: Any) -> Any:
        return SimpleNamespace(name=f"vllm:{name}", **values)

    engine = [
        metric("spec_decode_num_drafts", value=3),
        metric("spec_decode_num_draft_tokens", value=6),
        metric("spec_decode_num_accepted_tokens", value=4),
        metric("spec_decode_num_accepted_tokens_per_pos", values=[3, 1]),
        metric("num_requests_running", value=9),
    ]
    assert counters(engine + engine) == SpecCounters(6, 12, 8, (6, 2))
    assert counters([]) == SpecCounters()


def test_a_requests_own_speculation_from_its_histogram() -> None:
    out = output([7], [7], [-1.0])
    assert completion(out, topk=0).spec is None, "versions that don't count it"
    out.outputs[0].spec_decode_metrics = SimpleNamespace(histogram=[5, 3, 2], num_draft_tokens=20)
    got = completion(out, topk=0).spec
    assert got == SpecCounters(drafts=10, drafted=20, accepted=7, accepted_per_position=(5, 2))


def test_counters_of_requests_add_up_whatever_their_depths() -> None:
    assert SpecCounters(1, 2, 1, (1,)) + SpecCounters(3, 6, 3, (2, 1)) == SpecCounters(4, 8, 4, (3, 1))
