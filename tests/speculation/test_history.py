"""The index against brute force, its window, its bounds, and its snapshots under threads."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_specrl.speculation.history import BOUNDARY, HistoryIndex, prompt_hash, sort_contexts
from nemo_specrl.types import IntArray, Rollout, prompt_key


def rollout(prompt: list[int], response: list[int], slot: int = 0, finish: str = "stop") -> Rollout:
    n = len(response)
    return Rollout(
        prompt_key=prompt_key(prompt),
        slot=slot,
        prompt_ids=np.array(prompt, np.int32),
        token_ids=np.array(response, np.int32),
        logprobs=np.zeros(n, np.float32),
        policy_version=np.zeros(n, np.int32),
        finish_reason=finish,  # type: ignore[arg-type]
    )


def remembered(index: HistoryIndex, prompt: list[int]) -> list[list[int]]:
    """The prompt's rollouts as the tables hold them, newest first."""
    tables = index.tables
    found = np.flatnonzero(tables.hashes == prompt_hash(np.array(prompt, np.int32)))
    if not len(found):
        return []
    text = tables.text[tables.begin[found[0]] : tables.end[found[0]]].tolist()
    ends = [i for i, token in enumerate(text) if token == BOUNDARY]
    return [text[a + 1 : b] for a, b in itertools.pairwise(ends)]


def context(text: IntArray, position: int, depth: int) -> tuple[int, ...]:
    back: list[int] = []
    while len(back) < depth:
        position -= 1
        back.append(int(text[position]))
        if back[-1] == BOUNDARY:
            break
    return tuple(back)


responses = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=6)


@given(responses, st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=200, deadline=None)
def test_contexts_are_sorted_like_a_naive_sort(texts: list[list[int]], depth: int) -> None:
    text = np.array([BOUNDARY, *(t for part in texts for t in [*part, BOUNDARY])], np.int32)
    naive = sorted(np.flatnonzero(text != BOUNDARY).tolist(), key=lambda q: (context(text, q, depth), q))
    assert sort_contexts(text, depth).tolist() == naive


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.lists(st.integers(0, 9), max_size=5)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 3),
)
@settings(max_examples=200, deadline=None)
def test_the_window_keeps_each_slots_newest_epochs(history: list[tuple[int, int, list[int]]], window: int) -> None:
    """Against a model that keeps lists; prompts arrive in any order, slots unevenly, one observation at a time."""
    index = HistoryIndex(window=window)
    model: dict[int, list[tuple[int, list[int]]]] = {}
    for prompt, slot, response in history:
        index.observe([rollout([prompt], response, slot)])
        if response:
            seen = [(slot, response), *model.get(prompt, [])]
            model[prompt] = [
                (s, r) for i, (s, r) in enumerate(seen) if sum(other == s for other, _ in seen[:i]) < window
            ]
    for prompt in range(3):
        assert remembered(index, [prompt]) == [r for _, r in model.get(prompt, [])]
    assert index.tokens == sum(1 + sum(len(r) + 1 for _, r in rows) for rows in model.values())


def test_one_call_with_two_epochs_of_a_slot_keeps_their_order() -> None:
    index = HistoryIndex(window=1)
    index.observe([rollout([1], [5, 5]), rollout([1], [6, 6])])
    assert remembered(index, [1]) == [[6, 6]]


def test_memory_is_bounded_and_the_prompts_seen_longest_ago_go_first() -> None:
    index = HistoryIndex(window=1, max_tokens=100)
    for prompt in range(50):
        index.observe([rollout([prompt], [prompt] * 18)])
        index.observe([rollout([0], [7] * 18)])  # seen again and again, so it stays
        assert index.tokens <= 100
        assert len(index.tables.text) <= 2 * 100 + 2 * 20
    assert len(index) == 5
    assert remembered(index, [0]) == [[7] * 18]
    assert remembered(index, [49]) == [[49] * 18]
    assert remembered(index, [40]) == []


def test_a_prompt_larger_than_the_bound_keeps_what_fits_newest_first() -> None:
    index = HistoryIndex(window=1, max_tokens=20)
    index.observe([rollout([1], [slot] * 8, slot) for slot in range(5)])
    assert remembered(index, [1]) == [[4] * 8, [3] * 8]
    index.observe([rollout([1], [9] * 50)])
    assert index.tokens <= 20


def test_prompts_that_differ_in_one_token_stay_apart() -> None:
    index = HistoryIndex()
    index.observe([rollout([1, 2], [5]), rollout([1, 3], [6]), rollout([0, 1, 2], [7])])
    assert [remembered(index, p) for p in ([1, 2], [1, 3], [0, 1, 2])] == [[[5]], [[6]], [[7]]]


def test_the_length_limit_is_learnt_from_rollouts_that_hit_it() -> None:
    index = HistoryIndex()
    index.observe([rollout([1], [5] * 9)])
    assert index.tables.limit == 0
    index.observe([rollout([1], [5] * 7, finish="length")])
    assert index.tables.limit == 7


def test_observing_nothing_changes_nothing() -> None:
    index = HistoryIndex()
    before = index.tables
    index.observe([])
    index.observe([rollout([1], [])])
    assert index.tables is before
    assert len(index) == 0


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="window=0"):
        HistoryIndex(window=0)
    with pytest.raises(ValueError, match="max_tokens=0"):
        HistoryIndex(max_tokens=0)


def test_snapshots_stay_whole_while_threads_add() -> None:
    """Every snapshot that a reader holds keeps its blocks: each rollout of prompt p repeats one token of its own."""
    index = HistoryIndex(window=2, max_tokens=4000)
    stop = threading.Event()
    problems: list[str] = []

    def add(base: int) -> None:
        for i in range(150):
            prompt = base + i % 7
            index.observe([rollout([prompt], [prompt] * (10 + i % 30), slot) for slot in range(3)])

    def read() -> None:
        while not stop.is_set():
            tables = index.tables
            owners = {}
            for i in range(len(tables.begin)):
                text = tables.text[tables.begin[i] : tables.end[i]]
                tokens = set(text.tolist()) - {BOUNDARY}
                order = tables.order[tables.begin[i] : tables.begin[i] + tables.entries[i]]
                if len(tokens) != 1 or not (tables.text[order] != BOUNDARY).all():
                    problems.append(f"block {i}: {tokens}")
                owners[i] = tokens
            if len({min(t) for t in owners.values()}) != len(owners):
                problems.append("two blocks of one prompt")

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=add, args=(100 * n,)) for n in range(3)]
    for thread in [*readers, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not problems
    assert 0 < len(index) <= 21
    assert index.tokens <= 4000
