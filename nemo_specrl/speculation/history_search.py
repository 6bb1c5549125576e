"""The compiled search in a HistoryIndex: which prompt does a row begin with, where does its suffix occur?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.speculation.history import BOUNDARY, DEPTH, HASH_BASE, HASH_BITS, Tables
from nemo_specrl.types import IntArray

F = TypeVar("F", bound=Callable[..., Any])

OCCURRENCES = 16
"""At most so many occurrences of a match are counted: those nearest in context, the newest first among equals."""


def compiled(function: F) -> F:
    """Compile with numba, which comes with vLLM: an engine always has it. Elsewhere the same functions run as plain
    Python, some hundred times slower. No on-disk cache: numba's does not notice changed constants of other modules."""
    try:
        from numba import njit  # type: ignore[import-untyped]
    except ImportError:
        return function
    made: F = njit(function)
    return made


@compiled
def identify(tables: Tables, row: IntArray, length: int) -> tuple[int, int]:
    """(number, length) of the longest known prompt that row[:length] begins with; (-1, 0) if there is none."""
    number, start, value = -1, 0, 0
    bits = 0
    while (1 << bits) + 1 < len(tables.bucket):
        bits += 1
    for j in range(min(length, len(tables.known_length) - 1)):
        value = (value * HASH_BASE + int(row[j]) + 1) & ((1 << HASH_BITS) - 1)
        if tables.known_length[j + 1]:
            leading = value >> (HASH_BITS - bits)
            for candidate in range(tables.bucket[leading], tables.bucket[leading + 1]):
                if tables.hashes[candidate] == value:
                    number, start = candidate, j + 1
    return number, start


@compiled
def _compare(text: IntArray, position: int, row: IntArray, start: int, length: int, known: int) -> tuple[int, int]:
    """(-1, 0 or 1, shared tokens): the context of a position against that of row[start:length], boundary included.
    `known`: so many tokens are known to be shared."""
    for j in range(known, DEPTH):
        mine = int(text[position - 1 - j])
        its = int(row[length - 1 - j]) if length - 1 - j >= start else BOUNDARY
        if mine != its:
            return (-1 if mine < its else 1), j
        if mine == BOUNDARY:
            return 0, j + 1
    return 0, DEPTH


@compiled
def longest_match(
    tables: Tables, prompt: int, row: IntArray, start: int, length: int, min_match: int, where: NDArray[np.int64]
) -> tuple[int, int]:
    """(matched tokens, occurrences) of the longest suffix of row[start:length] that occurs in the prompt's history.
    `where` is filled with the positions of the tokens that came next. The boundary counts as a token."""
    text, order = tables.text, tables.order
    first, last = tables.begin[prompt], tables.begin[prompt] + tables.entries[prompt]
    low, high = first, last
    below, above = 0, 0  # shared with the nearest smaller and the nearest greater or equal context
    while low < high:
        middle = (low + high) // 2
        # What lies between two contexts shares with the row's at least what both of them do (Manber and Myers 1993).
        sign, shared = _compare(text, order[middle], row, start, length, min(below, above))
        if sign < 0:
            low, below = middle + 1, shared
        else:
            high, above = middle, shared
    matched = max(below, above)
    anchored = matched == length - start + 1
    if matched == 0 or (matched < min_match and not anchored):
        return matched, 0
    found = 0
    up, down = low, low - 1
    while found < OCCURRENCES and up < last and _compare(text, order[up], row, start, length, 0)[1] >= matched:
        where[found] = order[up]
        found, up = found + 1, up + 1
    while found < OCCURRENCES and down >= first and _compare(text, order[down], row, start, length, 0)[1] >= matched:
        where[found] = order[down]
        found, down = found + 1, down - 1
    return matched, found
