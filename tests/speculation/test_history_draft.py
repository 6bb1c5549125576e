"""Drafts against brute force; what a batch may do to its rows; the budget; experience; speed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.speculation import history_draft
from nemo_specrl.speculation.history import DEPTH, HistoryIndex
from nemo_specrl.speculation.history_draft import HistoryDrafter
from nemo_specrl.speculation.history_search import OCCURRENCES, identify, longest_match
from nemo_specrl.types import IntArray, Rollout, prompt_key

PROMPT = [90, 91, 92]
EAGER = DrafterConfig("history", num_draft_tokens=4, min_match=2, min_probability=0.01, max_active=10_000)


def rollout(response: Sequence[int], slot: int = 0, prompt: Sequence[int] = PROMPT, finish: str = "stop") -> Rollout:
    zeros = np.zeros(len(response))
    ids = np.array(prompt, np.int32), np.array(response, np.int32)
    law = zeros.astype(np.float32), zeros.astype(np.int32)
    return Rollout(prompt_key(prompt), slot, *ids, *law, finish)  # type: ignore[arg-type]


def index_of(*responses: Sequence[int]) -> HistoryIndex:
    index = HistoryIndex(window=1)
    index.observe([rollout(response, slot) for slot, response in enumerate(responses)])
    return index


def propose(
    drafter: HistoryDrafter,
    rows: Sequence[Sequence[int]],
    fresh: Sequence[int] | int = 1,
    *,
    width: int = 64,
    tail: bool = False,
) -> list[list[int]]:
    tokens = np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    new = np.full(len(rows), fresh, np.int64)
    return drafter.propose(tokens, np.array([len(row) for row in rows], np.int32), new, tail=tail)


def brute_force(texts: list[list[int]], generated: list[int]) -> tuple[int, set[tuple[int, int]]]:
    """(longest shared suffix, where it occurs as (text, position)); the start of the response is a token."""
    query = [-1, *generated]
    best, where = 0, set()
    for number, text in enumerate(texts):
        padded = [-1, *text]
        for position in range(1, len(padded)):
            shared = 0
            while (
                shared < min(position, len(query), DEPTH)
                and padded[position - 1 - shared] == query[len(query) - 1 - shared]
            ):
                shared += 1
            if shared > best:
                best, where = shared, set()
            if shared == best and shared:
                where.add((number, position - 1))
    return best, where


small = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(st.lists(small, min_size=1, max_size=5), st.lists(st.integers(0, 2), max_size=8), st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_the_longest_match_and_all_its_occurrences(
    texts: list[list[int]], generated: list[int], min_match: int
) -> None:
    index = index_of(*texts)
    tables, row = index.tables, np.array([*PROMPT, *generated, 7, 7], np.int32)
    number, start = identify(tables, row, len(PROMPT) + len(generated))
    assert (number, start) == (0, len(PROMPT))
    where = np.empty(OCCURRENCES, np.int64)
    matched, found = longest_match(tables, number, row, start, start + len(generated), min_match, where)
    length, occurrences = brute_force(texts, generated)
    assert matched == length
    if length >= min_match or length == len(generated) + 1:
        newest_first = np.cumsum([1, *(len(text) + 1 for text in texts[::-1])]).tolist()
        starts = dict(zip(range(len(texts) - 1, -1, -1), newest_first, strict=False))
        expected = {starts[text] + at for text, at in occurrences}
        assert found == len(set(where[:found].tolist())) == min(len(expected), OCCURRENCES)
        assert set(where[:found].tolist()) <= expected
    else:
        assert found == 0


def test_nothing_generated_matches_the_start_of_every_sibling() -> None:
    """Position 0. (vLLM samples a first token before it asks; the index would know it.)"""
    drafter = HistoryDrafter(EAGER, index_of([5, 6, 7, 8], [5, 6, 9, 9], [5, 6, 7, 7]))
    drafter.trials[:, 4], drafter.hits[:, 4] = 100, 100  # unanimity has been right so far
    tokens = np.array([[*PROMPT, 0, 0, 0, 0, 0]], np.int32)
    where = np.empty(OCCURRENCES, np.int64)
    assert longest_match(drafter.index.tables, 0, tokens[0], 3, 3, 2, where) == (1, 3)
    assert propose(drafter, [[*PROMPT, 5]]) == [[6, 7, 7]]  # [5] is shorter than min_match, but it is the start


def test_a_short_match_in_the_middle_is_not_enough() -> None:
    drafter = HistoryDrafter(EAGER, index_of([1, 2, 3, 4, 5, 6]))
    assert propose(drafter, [[*PROMPT, 9, 3]]) == [[]]
    assert propose(drafter, [[*PROMPT, 9, 3, 4]]) == [[5, 6]]


def test_after_a_rejection_the_rest_of_the_cached_rollout_is_draft_material() -> None:
    """Reuse keeps a prefix and the engine's prompt is prompt + prefix; the replacement token breaks the match, two
    tokens later the draft is aligned again."""
    cached = list(range(10, 30))
    drafter = HistoryDrafter(EAGER, index_of(cached))
    row = [*PROMPT, *cached[:6], 77]
    assert propose(drafter, [row]) == [[]]
    assert propose(drafter, [[*row, 17, 18]]) == [cached[9:13]]


def test_a_draft_ends_where_the_product_of_probabilities_falls_below_the_bar() -> None:
    cautious = DrafterConfig("history", num_draft_tokens=8, min_match=2, min_probability=0.3, max_active=10_000)
    index = index_of(list(range(10, 30)))
    row = [*PROMPT, 10, 11, 12]
    assert propose(HistoryDrafter(cautious, index), [row]) == [[13]]  # a single witness: 1/2, then 1/4
    drafter = HistoryDrafter(cautious, index)
    drafter.trials[:], drafter.hits[:] = 400, 360  # 0.9 each: 0.9^8 = 0.43
    assert propose(drafter, [row]) == [list(range(13, 21))]


def test_the_most_frequent_continuation_wins() -> None:
    drafter = HistoryDrafter(EAGER, index_of([1, 2, 3], [1, 2, 4], [1, 2, 4], [1, 2, 5]))
    assert propose(drafter, [[*PROMPT, 1, 2]])[0][:1] == [4]


def test_rows_may_move_pause_and_vanish() -> None:
    """Nothing is kept per row: a batch's drafts don't depend on who stands where, nor on who was there before."""
    prompts = [[40 + i, 41, 42 + i] for i in range(6)]
    index = HistoryIndex()
    for i, prompt in enumerate(prompts):
        index.observe([rollout(range(i, i + 20), prompt=prompt)])
    rows = [[*prompt, *range(i, i + 5)] for i, prompt in enumerate(prompts)]

    def fresh_drafter() -> HistoryDrafter:
        drafter = HistoryDrafter(EAGER, index)
        drafter.trials[:], drafter.hits[:] = 1e9, 1e9  # experience is shared by the rows; here it stands still
        return drafter

    drafter = fresh_drafter()
    expected = [list(range(i + 5, i + 9)) for i in range(6)]
    assert propose(drafter, rows) == expected
    shuffled = [3, 0, 5, 4, 1, 2]
    assert propose(drafter, [rows[i] for i in shuffled]) == [expected[i] for i in shuffled]
    assert propose(drafter, rows[:2]) == expected[:2]
    assert propose(drafter, rows) == expected  # those that were absent for one step are back
    assert propose(drafter, rows, [1, 0, 1, 0, 1, 1]) == [e if i not in (1, 3) else [] for i, e in enumerate(expected)]
    assert propose(fresh_drafter(), rows) == expected


def test_unknown_prompts_get_no_draft_and_do_no_harm() -> None:
    drafter = HistoryDrafter(EAGER, index_of([1, 2, 3, 4]))
    rows = [[9], [90, 91], [90, 91, 93, 1, 2], [*PROMPT, 1, 2], [0] * 60]
    assert propose(drafter, rows) == [[], [], [], [3, 4], []]
    assert propose(HistoryDrafter(EAGER, HistoryIndex()), rows) == [[]] * 5
    assert propose(drafter, []) == []


def test_the_longest_known_prompt_is_the_rows_prompt() -> None:
    index = HistoryIndex()
    index.observe([rollout([1, 2, 3, 4], prompt=[8]), rollout([5, 6, 7], prompt=[8, 1, 2])])
    assert propose(HistoryDrafter(EAGER, index), [[8, 1, 2, 5]]) == [[6, 7]]


@given(
    st.integers(1, 5), st.integers(0, 30), st.integers(0, 6), st.booleans(), st.one_of(st.none(), st.integers(10, 31))
)
@settings(max_examples=100, deadline=None)
def test_a_draft_exceeds_neither_k_nor_the_rows_room(
    k: int, generated: int, spare: int, tail: bool, limit: int | None
) -> None:
    text = list(range(31))
    index = index_of(text, text[:20])
    if limit:
        index.observe([rollout(text[:limit], 2, finish="length")])
    config = DrafterConfig("history", num_draft_tokens=k, min_probability=0.01, max_active=10_000)
    drafter = HistoryDrafter(config, index)
    row = [*PROMPT, *text[: generated + 1]]
    (draft,) = propose(drafter, [row], width=len(row) + spare, tail=tail)
    assert len(draft) <= min(k, max(spare - 1, 0))
    if limit and limit > generated + 1:
        assert generated + 1 + len(draft) + 1 <= limit  # + 1: the verifier's own token
    assert draft == text[generated + 1 : generated + 1 + len(draft)]


def test_above_max_active_nothing_is_drafted_and_below_it_the_bar_rises() -> None:
    text = list(range(40))
    config = DrafterConfig("history", num_draft_tokens=4, min_probability=0.3, max_active=8)
    drafter = HistoryDrafter(config, index_of(text))
    sizes = []
    for active in range(1, 11):
        drafter.trials[:], drafter.hits[:] = 1e6, 0.8e6
        sizes.append(len(propose(drafter, [[*PROMPT, *text[:5]]] * active)[0]))
    assert sizes[0] == 4  # 0.8^4 = 0.41 > 0.3
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[7:] == [0, 0, 0]  # at 8 the bar is 0.91; above, off
    assert len(set(sizes)) >= 4  # no cliff


@pytest.mark.parametrize(("active", "drafting", "drafted"), [(1, 1, True), (4, 1, True), (5, 1, False), (5, 2, True)])
def test_a_step_drafts_only_where_that_gains_enough(active: int, drafting: int, drafted: bool) -> None:
    """Each known row should gain 0.9 tokens; with min_gain = 0.2 one pays for a batch of 4, not of 5."""
    config = DrafterConfig("history", num_draft_tokens=1, min_probability=0.01, min_gain=0.2, max_active=10_000)
    drafter = HistoryDrafter(config, index_of(list(range(40))))
    drafter.trials[:], drafter.hits[:] = 1e6, 0.9e6
    rows = [[*PROMPT, *range(5)]] * drafting + [[4, 4, 4, 4]] * (active - drafting)
    sizes = [len(draft) for draft in propose(drafter, rows)]
    assert sizes == [int(drafted)] * drafting + [0] * (active - drafting)


def test_in_the_tail_rows_with_short_siblings_get_fewer() -> None:
    short, long = [70, 71], [80, 81]
    index = HistoryIndex()
    index.observe([rollout(range(12), prompt=short), rollout(range(50), prompt=long)])
    rows = [[*short, *range(6)], [*long, *range(6)]]

    def sizes(tail: bool) -> list[int]:
        drafter = HistoryDrafter(EAGER, index)
        drafter.trials[:], drafter.hits[:] = 1e6, 1e6
        return [len(draft) for draft in propose(drafter, rows, tail=tail)]

    assert sizes(tail=False) == [4, 4]
    assert sizes(tail=True) == [1, 4]
    rows[0] = [*short, *range(11), 3, 10, 11, 10]  # has outlived its sibling: the one to wait for
    assert sizes(tail=True)[1] == 4


def test_experience_is_the_hit_rate_of_what_would_have_been_proposed() -> None:
    """A history that is right 3 times of 4 is known for it, without one draft being made (the bar is 1)."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 1000, 2000)
    shy = DrafterConfig("history", min_probability=1.0)
    drafter = HistoryDrafter(shy, index_of(text.tolist()))
    wrong = rng.random(2000) < 0.25
    sampled = np.where(wrong, 5000, text)
    row = np.array([[*PROMPT, *sampled]], np.int32)
    for n in range(1, 2001):
        assert drafter.propose(row, np.array([3 + n], np.int32), np.array([1], np.int64)) == [[]]
    rate = drafter.hits[:, 0].sum() / drafter.trials[:, 0].sum()
    assert drafter.trials.sum() > 200
    assert abs(rate - 0.75) < 0.08  # 5 standard errors at 700 trials


def test_old_experience_fades() -> None:
    text = list(range(2000))
    drafter = HistoryDrafter(EAGER, index_of(text))
    row = np.array([[*PROMPT, *text]], np.int32)
    drafter.trials[:], drafter.hits[:] = 500, 0
    for n in range(100, 1100):
        drafter.propose(row, np.array([3 + n], np.int32), np.array([1], np.int64))
    assert drafter.trials.max() <= history_draft.MEMORY
    assert drafter.hits[-1, 0] / drafter.trials[-1, 0] > 0.7


def batch(rows: int, prompts: int, siblings: int, length: int) -> tuple[HistoryIndex, IntArray, IntArray]:
    """An index of noisy siblings and the batch's own continuations of the same texts."""
    rng = np.random.default_rng(1)
    base = rng.integers(0, 3000, (prompts, length))

    def noisy(i: int) -> list[int]:
        return np.where(rng.random(length) < 0.1, rng.integers(0, 3000, length), base[i]).tolist()  # type: ignore[no-any-return]

    index = HistoryIndex(window=1)
    names = [rng.integers(0, 3000, int(rng.integers(50, 250))).tolist() for _ in range(prompts)]
    for i, name in enumerate(names):
        index.observe([rollout(noisy(i), slot, name) for slot in range(siblings)])
    tokens = np.zeros((rows, length + 256), np.int32)
    for r in range(rows):
        row = [*names[r % prompts], *noisy(r % prompts)]
        tokens[r, : len(row)] = row
    lengths = np.array([len(names[r % prompts]) + length // 2 for r in range(rows)], np.int32)
    return index, tokens, lengths


def test_a_step_is_fast() -> None:
    """256 rows over 16 x 512-token histories; the benchmark has the full size. The bound is generous (a loaded
    machine), yet far below what plain Python or a scan of the histories takes."""
    index, tokens, lengths = batch(256, 8, 16, 512)
    drafter = HistoryDrafter(EAGER, index)
    fresh = np.ones(256, np.int64)
    seconds = []
    for step in range(30):
        start = time.thread_time()
        drafts = drafter.propose(tokens, lengths + step, fresh)
        seconds.append(time.thread_time() - start)
    assert sum(map(bool, drafts)) > 200
    assert np.median(seconds) < 0.010


def test_it_works_without_numba_and_says_the_same(tmp_path: object) -> None:
    program = """
import sys
if sys.argv[1] == "without":
    sys.modules["numba"] = None
import numpy as np
sys.path.insert(0, "tests/speculation")
from test_history_draft import EAGER, batch
from nemo_specrl.speculation.history_draft import HistoryDrafter, _extend
assert hasattr(_extend, "py_func") == (sys.argv[1] == "with")
np.seterr(all="raise", under="ignore")
index, tokens, lengths = batch(12, 3, 4, 60)
drafter = HistoryDrafter(EAGER, index)
print([drafter.propose(tokens, lengths + step, np.ones(12, np.int64), tail=step > 9) for step in range(20)])
"""
    outputs = [
        subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, check=False)
        for how in ("with", "without")
    ]
    assert outputs[0].stdout == outputs[1].stdout != "", outputs[1].stderr
    assert "[[]" in outputs[0].stdout or "], [" in outputs[0].stdout


@pytest.mark.parametrize("seed", range(3))
def test_equal_inputs_give_equal_drafts(seed: int) -> None:
    index, tokens, lengths = batch(8, 2, 3, 80)
    runs = []
    for _ in range(2):
        drafter = HistoryDrafter(EAGER, index)
        runs.append([drafter.propose(tokens, lengths + seed + s, np.ones(8, np.int64)) for s in range(20)])
    assert runs[0] == runs[1]
