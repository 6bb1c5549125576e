"""Drafts from the history of a prompt: what to propose for each row of a batch, and how much of it.

A row is matched with the index (history.py) from its tokens alone, every step anew; the cost is a hash of the prompt
and one binary search. A draft follows the most frequent continuation of the longest match, and ends where the
probability that the next token is reached *and* accepted falls below the bar:

    bar(active) = min_probability + (1 - min_probability) * (active - 1) / max_active

since a drafted token costs the more, the fuller the batch; above `max_active` nothing is proposed. A step that carries
any draft at all costs more than one without, so it is left without where all drafts together promise fewer than
`min_gain` accepted tokens per active row. The probability is the count-based one, corrected by experience: at every
step the index is asked in hindsight what it would have proposed where the newest token now stands, drafted or not. The
token was drawn from the policy, so the hit rate of such predictions is the acceptance rate of a one-hot draft, kept by
match length and evidence. Nothing depends on the clock or on chance. Verification is one-hot and lossless: whatever is
proposed here changes speed only.

The length budget is DAS's idea (arXiv 2511.13841); the bar, the least gain and the hindsight estimate are ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.speculation.history import BOUNDARY, HistoryIndex, Tables
from nemo_specrl.speculation.history_search import OCCURRENCES, compiled, identify, longest_match
from nemo_specrl.types import IntArray

PRIOR = 4.0
"""Weight of the count-based probability against experience, in observed tokens."""
MEMORY = 512.0
"""A cell of the experience table that has seen so many tokens is halved: the policy moves."""
HINDSIGHT = 32
"""At most so many rows a step are checked in hindsight; in larger batches they take turns."""
LENGTH_CLASSES, EVIDENCE_CLASSES = 6, 5


class Limits(NamedTuple):
    """How much may be proposed in one step."""

    tokens: int
    """k, the most draft tokens of a row."""
    bar: float
    """Least probability of reaching and accepting a drafted token."""
    gain: float
    """Least expected number of accepted tokens per row for a step to carry drafts."""
    min_match: int
    """Shortest matched suffix; a match that reaches back to the start of the response may be shorter."""
    row_tokens: int
    """Most tokens of a row, prompt included."""
    phase: int
    """Counts the steps: whose turn it is to be checked in hindsight."""
    spread: bool
    """Give rows that will end early fewer tokens (they do not decide when the batch is done)."""


class HistoryDrafter:
    """Drafts for a batch. One thread drafts; the index may be added to meanwhile.

    Compiled with numba, once a process, at construction (seconds); benchmarks/history_drafting.py times it.
    """

    def __init__(self, config: DrafterConfig, index: HistoryIndex) -> None:
        self.config = config
        self.index = index
        self.hits = np.zeros((LENGTH_CLASSES, EVIDENCE_CLASSES))
        """Predictions that came true, by match length and evidence."""
        self.trials = np.zeros((LENGTH_CLASSES, EVIDENCE_CLASSES))
        """All predictions, likewise."""
        self._steps = 0
        self._draft(index.tables, np.zeros((1, 2), np.int32), np.array([2], np.int32), np.array([1]), False)

    def propose(
        self,
        tokens: IntArray,
        lengths: IntArray,
        fresh: NDArray[np.int64],
        *,
        tail: bool = False,
    ) -> list[list[int]]:
        """At most k draft tokens for each of the B rows; an empty list where there is nothing worth drafting.

        tokens [>= B, L]: prompt and response of each row. lengths [>= B]: how many of them there are. fresh [B]: how
        many of those are new in this step; rows with none are left out. tail: no further requests are waiting, so the
        rows that end last decide, and shorter ones get a smaller budget.
        """
        tables, rows = self.index.tables, len(fresh)
        if not len(tables.begin) or not 0 < rows <= self.config.max_active:
            return [[] for _ in range(rows)]
        return self._draft(tables, tokens, lengths, fresh, tail)

    def _draft(
        self, tables: Tables, tokens: IntArray, lengths: IntArray, fresh: NDArray[np.int64], tail: bool
    ) -> list[list[int]]:
        config, rows = self.config, len(fresh)
        bar = config.min_probability + (1.0 - config.min_probability) * (rows - 1) / config.max_active
        limits = Limits(
            config.num_draft_tokens, float(bar), config.min_gain, config.min_match, tokens.shape[1], self._steps, tail
        )
        self._steps += 1
        drafts = np.empty((rows, limits.tokens), np.int32)
        counts = np.zeros(rows, np.int64)
        _draft_rows(tables, tokens, lengths.astype(np.int64), fresh, limits, self.hits, self.trials, drafts, counts)
        return [row[:n] for row, n in zip(drafts.tolist(), counts.tolist(), strict=True)]


@compiled
def _draft_rows(
    tables: Tables,
    tokens: IntArray,
    lengths: NDArray[np.int64],
    fresh: NDArray[np.int64],
    limits: Limits,
    hits: NDArray[np.float64],
    trials: NDArray[np.float64],
    drafts: IntArray,
    counts: NDArray[np.int64],
) -> None:
    """Identify every row, learn from its newest token, then draft: [B, k] `drafts` and [B] `counts` are filled in."""
    rows = len(fresh)
    prompt = np.full(rows, -1, np.int64)
    start = np.zeros(rows, np.int64)
    rest = np.zeros(rows)
    where = np.empty(OCCURRENCES, np.int64)
    stride = 1 + (rows - 1) // HINDSIGHT
    for i in range(rows):
        if fresh[i] > 0:
            before = lengths[i] - fresh[i]
            prompt[i], start[i] = identify(tables, tokens[i], before)
            if prompt[i] >= 0:
                rest[i] = _expected_rest(tables, prompt[i], lengths[i] - start[i])
                if i % stride == limits.phase % stride:
                    match = longest_match(tables, prompt[i], tokens[i], start[i], before, limits.min_match, where)
                    _learn(tables.text, where, match, tokens[i, before], hits, trials)
    longest, expected = rest.max(), 0.0
    for i in range(rows):
        if prompt[i] >= 0:
            budget = min(limits.tokens, limits.row_tokens - lengths[i] - 1)
            generated = lengths[i] - start[i]
            if tables.limit > generated:  # the verifier adds a token of its own to what it accepts
                budget = min(budget, tables.limit - generated - 1)
            if limits.spread and longest > 0.0:
                budget = min(budget, int(np.ceil(limits.tokens * rest[i] / longest)))
            match = longest_match(tables, prompt[i], tokens[i], start[i], lengths[i], limits.min_match, where)
            counts[i], gain = _extend(tables.text, where, match, budget, limits.bar, hits, trials, drafts[i])
            expected += gain
    if expected < limits.gain * rows:
        counts[:] = 0


@compiled
def _learn(
    text: IntArray,
    where: NDArray[np.int64],
    match: tuple[int, int],
    sampled: int,
    hits: NDArray[np.float64],
    trials: NDArray[np.float64],
) -> None:
    """Would the token that was sampled have been predicted?"""
    matched, found = match
    if found:
        token, votes = _most_frequent(text, where, found)
        row, column = _classes(matched, votes, found)
        if trials[row, column] >= MEMORY:
            trials[row, column] *= 0.5
            hits[row, column] *= 0.5
        trials[row, column] += 1.0
        if token == sampled:
            hits[row, column] += 1.0


@compiled
def _extend(
    text: IntArray,
    where: NDArray[np.int64],
    match: tuple[int, int],
    budget: int,
    bar: float,
    hits: NDArray[np.float64],
    trials: NDArray[np.float64],
    draft: IntArray,
) -> tuple[int, float]:
    """Follow the match: (how many tokens of `draft` [k] were filled in, how many of them should be accepted)."""
    matched, found = match
    size, reached, expected = 0, 1.0, 0.0
    while size < budget and found:
        token, votes = _most_frequent(text, where, found)
        row, column = _classes(matched + size, votes, found)
        prior = votes / (found + 1.0)  # one more voter, for something else
        reached *= (hits[row, column] + PRIOR * prior) / (trials[row, column] + PRIOR)
        if reached < bar:
            break
        draft[size] = token
        size += 1
        expected += reached
        found = _follow(text, where, found, token)
    return size, expected


@compiled
def _most_frequent(text: IntArray, where: NDArray[np.int64], found: int) -> tuple[int, int]:
    """(token, votes): the most frequent among the tokens at the first `found` positions, the first of equals."""
    token, votes = BOUNDARY, 0
    for i in range(found):
        if votes >= found - i:  # what is left cannot outvote it
            break
        candidate = int(text[where[i]])
        if candidate == token:
            continue
        tally = 0
        for j in range(i, found):
            if text[where[j]] == candidate:
                tally += 1
        if tally > votes:
            token, votes = candidate, tally
    return token, votes


@compiled
def _follow(text: IntArray, where: NDArray[np.int64], found: int, token: int) -> int:
    """Advance the positions that hold `token`, drop the others and those whose rollout ends there; how many stay."""
    kept = 0
    for i in range(found):
        if text[where[i]] == token and text[where[i] + 1] != BOUNDARY:
            where[kept] = where[i] + 1
            kept += 1
    return kept


@compiled
def _classes(matched: int, votes: int, voters: int) -> tuple[int, int]:
    """The cell of the experience table: length 1, 2-3, 4-7, ... 32; a single witness, or how far they agree."""
    row = 0
    while row < LENGTH_CLASSES - 1 and matched >= 2 << row:
        row += 1
    if voters == 1:
        return row, 0
    if votes == voters:
        return row, 4
    share = votes / voters
    return row, 1 if share < 0.5 else 2 if share < 0.75 else 3


@compiled
def _expected_rest(tables: Tables, prompt: int, generated: int) -> float:
    """Tokens still to come, by the prompt's earlier responses that are longer than this one; where none is, by the
    whole length of the longest: a response that outlives its siblings is the straggler one waits for."""
    total, longer = 0.0, 0
    first = tables.begin[prompt] + tables.entries[prompt]
    last = tables.end[prompt] - 1
    for i in range(first, last):
        if tables.order[i] > generated:
            total += tables.order[i] - generated
            longer += 1
    return total / longer if longer else float(tables.order[last - 1])
