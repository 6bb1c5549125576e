"""What earlier rollouts of a prompt say about its next tokens: a per-prompt index, searched by suffix.

Every position of every remembered rollout is filed under its *context*, the tokens before it read backwards up to the
start of the response. Sorted, contexts that share a suffix lie side by side: the longest match of what a request has
generated is next to where its own context would be inserted, one binary search away, and the matches' next tokens
with their counts are the draft. The start of the response is a token of its own (BOUNDARY), so a response of which
nothing is generated yet already matches the start of every sibling.

Why sorted contexts and not a suffix automaton or hash buckets: 8 bytes a token in two flat arrays, dropped and
compacted by slicing, and the cost of a look-up is logarithmic whatever the text (a period makes hash buckets
degenerate). Nothing is kept per request, so requests may move, pause or vanish without a trace. The idea of drafting
from a prompt's own earlier rollouts is DAS's (arXiv 2511.13841) and SRT's (arXiv 2601.09083); this structure is ours.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.types import IntArray, Rollout

BOUNDARY = -1
"""Stands before the first token of each rollout, and after the last rollout of a block."""
DEPTH = 32
"""Contexts are compared over so many tokens; a longer match says no more."""
HASH_BITS = 62
HASH_BASE = 0x5851F42D4C957F2D
"""Prompts are told apart by a polynomial hash modulo 2^62, in this odd base (the multiplier of Knuth's MMIX
generator): low bits of a product, so 64-bit arithmetic that wraps around gives the same as Python's."""


class Tables(NamedTuple):
    """An immutable snapshot of the index: flat arrays, as the compiled search wants them. N prompts.

    Prompt i owns text[begin[i]:end[i]] = BOUNDARY r_1 BOUNDARY r_2 ... BOUNDARY, newest rollout first, and the same
    span of `order`: first `entries[i]` positions in `text`, sorted by their contexts, then its R response lengths.
    """

    text: IntArray
    order: IntArray
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    entries: NDArray[np.int64]
    hashes: NDArray[np.int64]
    """[N] the prompts' hashes, ascending: prompt i is the one with the i-th smallest hash."""
    bucket: NDArray[np.int64]
    """[2^b + 1] hashes with leading bits x stand at bucket[x]:bucket[x + 1]."""
    known_length: NDArray[np.bool_]
    """[longest prompt + 1] is there a prompt of this length?"""
    limit: int
    """The response-length limit, where a rollout has shown it by running into it; 0 = not known."""


@dataclass(slots=True)
class _Block:
    """One prompt's rollouts, newest first, and where they lie."""

    hash: int
    prompt_length: int
    slots: list[int]
    lengths: list[int]
    begin: int
    end: int

    def rollouts(self, text: IntArray) -> Iterable[tuple[int, IntArray]]:
        """(slot, token ids) of each, read from the block's text."""
        at = self.begin + 1
        for slot, length in zip(self.slots, self.lengths, strict=True):
            yield slot, text[at : at + length]
            at += length + 1


class HistoryIndex:
    """The rollouts of the last `window` epochs of each prompt, siblings included.

    Memory: 8 bytes a token for at most `max_tokens` tokens, twice that while it is compacted; the prompts that were
    seen longest ago go first. Adding rollouts rebuilds the block of their prompt and leaves the others alone.

    Threads: any number may read `tables` and any number may `observe`. A snapshot never changes: what it points at is
    not written again.
    """

    def __init__(self, window: int = 2, max_tokens: int = 2**25) -> None:
        if window < 1 or max_tokens < 1:
            raise ValueError(f"HistoryIndex: window={window} and max_tokens={max_tokens} must be positive")
        self.window = window
        self.max_tokens = max_tokens
        self._lock = threading.Lock()
        self._blocks: dict[str, _Block] = {}
        self._live = 0
        self._used = 0
        self._limit = 0
        self.tables = self._snapshot(np.empty(0, np.int32), np.empty(0, np.int32))

    def __len__(self) -> int:
        """Prompts."""
        return len(self._blocks)

    @property
    def tokens(self) -> int:
        """Places taken: the remembered tokens, and one boundary for each rollout and block."""
        return self._live

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Remember finished rollouts. A slot's rollout is its newest epoch: its `window`-th last one is forgotten."""
        by_prompt: dict[str, list[Rollout]] = {}
        for rollout in rollouts:
            if rollout.length:
                by_prompt.setdefault(rollout.prompt_key, []).append(rollout)
        with self._lock:
            text, order = self.tables.text, self.tables.order
            for key, fresh in by_prompt.items():
                self._limit = max([self._limit, *(r.length for r in fresh if r.finish_reason == "length")])
                text, order = self._rebuild(key, fresh, text, order)
            if by_prompt:
                self.tables = self._snapshot(text, order)

    def _rebuild(self, key: str, fresh: list[Rollout], text: IntArray, order: IntArray) -> tuple[IntArray, IntArray]:
        """The prompt's block anew, with `fresh` in front, behind everything that snapshots may be reading."""
        old = self._blocks.pop(key, None)
        newest_first = [(r.slot, np.asarray(r.token_ids, np.int32)) for r in reversed(fresh)]
        if old is not None:
            newest_first += old.rollouts(text)
        kept: list[tuple[int, IntArray]] = []
        epochs: Counter[int] = Counter()
        room = self.max_tokens - 1
        for slot, ids in newest_first:
            epochs[slot] += 1
            if epochs[slot] <= self.window and len(ids) + 1 <= room:
                kept.append((slot, ids))
                room -= len(ids) + 1
        self._live -= old.end - old.begin if old is not None else 0
        if not kept:
            return text, order
        lengths = [len(ids) for _, ids in kept]
        size = sum(lengths) + len(lengths) + 1
        body = np.full(size, BOUNDARY, np.int32)
        for (_, ids), at in zip(kept, np.cumsum([1, *(n + 1 for n in lengths[:-1])]), strict=True):
            body[at : at + len(ids)] = ids

        while self._live + size > self.max_tokens:
            oldest = self._blocks.pop(next(iter(self._blocks)))
            self._live -= oldest.end - oldest.begin
        if self._used + size > len(text):
            text, order = self._compact(text, order, size)
        begin, end = self._used, self._used + size
        text[begin:end] = body
        order[begin : end - 1] = [*(sort_contexts(body) + begin), *sorted(lengths)]
        self._used = end
        self._live += size
        prompt = np.asarray(fresh[0].prompt_ids, np.int32)
        self._blocks[key] = _Block(prompt_hash(prompt), len(prompt), [s for s, _ in kept], lengths, begin, end)
        return text, order

    def _compact(self, text: IntArray, order: IntArray, extra: int) -> tuple[IntArray, IntArray]:
        """The living blocks, moved to the front of new arrays with room for as much again."""
        capacity = 2 * (self._live + extra)
        new_text, new_order = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
        self._used = 0
        for block in self._blocks.values():
            span, shift = slice(self._used, self._used + block.end - block.begin), self._used - block.begin
            new_text[span] = text[block.begin : block.end]
            new_order[span] = order[block.begin : block.end]
            new_order[span.start : span.start + sum(block.lengths)] += shift
            block.begin, block.end = span.start, span.stop
            self._used = span.stop
        return new_text, new_order

    def _snapshot(self, text: IntArray, order: IntArray) -> Tables:
        blocks = sorted(self._blocks.values(), key=lambda block: block.hash)
        hashes = np.array([block.hash for block in blocks], np.int64)
        bits = max(1, len(blocks)).bit_length()
        edges = np.arange(2**bits + 1, dtype=np.int64) << (HASH_BITS - bits)
        known_length = np.zeros(1 + max((block.prompt_length for block in blocks), default=0), np.bool_)
        known_length[[block.prompt_length for block in blocks]] = True
        return Tables(
            text,
            order,
            np.array([block.begin for block in blocks], np.int64),
            np.array([block.end for block in blocks], np.int64),
            np.array([sum(block.lengths) for block in blocks], np.int64),
            hashes,
            np.searchsorted(hashes, edges).astype(np.int64),
            known_length,
            self._limit,
        )


def prompt_hash(token_ids: IntArray) -> int:
    """A polynomial hash of a prompt. Extended token by token, it names every prefix of a row in one pass."""
    value = 0
    for token in token_ids.tolist():
        value = (value * HASH_BASE + token + 1) % 2**HASH_BITS
    return value


def sort_contexts(text: IntArray, depth: int = DEPTH) -> IntArray:
    """The positions of `text` that hold tokens, sorted by their contexts: the tokens before a position, read backwards
    up to and including the boundary, compared lexicographically over at least `depth` tokens, shorter first; equal
    contexts by position. Prefix doubling (Manber and Myers 1993) on the reversed text: O(n log n log depth)."""
    at = np.arange(len(text))
    boundary = text == BOUNDARY
    home = np.maximum.accumulate(np.where(boundary, at, 0))
    rank = _dense_rank(np.where(boundary, np.int64(BOUNDARY - 1), np.roll(text, 1)))
    reach = 1
    while reach < depth:
        rank = _dense_rank(rank * len(text) + rank[np.maximum(at - reach, home)])
        reach *= 2
    order = np.argsort(rank, kind="stable")
    return order[int(boundary.sum()) :].astype(np.int32)


def _dense_rank(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] the rank of each key among the distinct keys, from 0."""
    order = np.argsort(keys)
    ordered = keys[order]
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.cumsum(np.concatenate(([0], (ordered[1:] != ordered[:-1]).astype(np.int64))))
    return rank
