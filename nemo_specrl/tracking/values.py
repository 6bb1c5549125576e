"""Whatever a run wants recorded -> flat names that MLflow takes, and plain numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, SupportsFloat

MAX_KEY = 250
"""Longest metric, parameter or tag name that MLflow stores, in characters."""
MAX_SEQUENCE = 64
"""A longer sequence of numbers is recorded as its mean, minimum and maximum."""


class KeyCollisionError(ValueError):
    """Two different names would become one in MLflow."""


class KeyTable:
    """Names as MLflow stores them. It refuses `@`, `[`, `//`, a leading `/` and `..`, each for its whole batch."""

    def __init__(self) -> None:
        self._clean: dict[str, str] = {}
        self._owner: dict[str, str] = {}

    def clean(self, key: str) -> str:
        """`pass@1` -> `pass_at_1`. Raises KeyCollisionError if another name already became the same."""
        if (known := self._clean.get(key)) is not None:
            return known
        cleaned = clean_key(key)
        if (owner := self._owner.setdefault(cleaned, key)) != key:
            raise KeyCollisionError(
                f"metric {key!r} would be stored as {cleaned!r}, which {owner!r} already is: rename one"
            )
        self._clean[key] = cleaned
        return cleaned


def clean_key(key: str) -> str:
    """A name that every MLflow store takes; names that it takes already stay as they are."""
    text = re.sub(r"[^/\w.\- :]", "_", key.replace("@", "_at_"))
    parts = [part for part in text.split("/") if part.strip(". ")]
    return "/".join(parts)[:MAX_KEY].rstrip("/") or "_"


def flatten(values: Any, separator: str = "/", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and dataclasses with their joined names; sequences stay leaves."""
    if is_dataclass(values) and not isinstance(values, type):
        values = {field.name: getattr(values, field.name) for field in fields(values)}
    if not isinstance(values, Mapping):
        yield prefix, values
        return
    for key, value in values.items():
        yield from flatten(value, separator, f"{prefix}{separator}{key}" if prefix else str(key))


def numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float | int | None]]:
    """Flat (name, number) pairs; a value that is no number is None, for the caller to count.

    NaN, infinities and what no float holds (10**400) break MLflow's pages: such a value becomes the counter
    `nonfinite/<name>` = 1.
    """
    for key, leaf in flatten(values):
        for name, number in _expand(key, leaf):
            if number is not None and not math.isfinite(number):
                yield f"nonfinite/{name}", 1
            else:
                yield name, number


def _expand(key: str, leaf: Any) -> Iterator[tuple[str, float | int | None]]:
    if hasattr(leaf, "tolist"):  # numpy and torch alike, zero-dimensional ones included
        leaf = leaf.tolist()
    if isinstance(leaf, Sequence) and not isinstance(leaf, str | bytes):
        items = [to_number(item) for item in leaf]
        known = [item for item in items if item is not None]
        if len(known) < len(items) or not items:
            yield key, None
        elif len(items) > MAX_SEQUENCE:
            yield from (
                (f"{key}/mean", sum(map(float, known)) / len(known)),
                (f"{key}/min", min(known)),
                (f"{key}/max", max(known)),
            )
        else:
            yield from ((f"{key}/{index}", item) for index, item in enumerate(known))
    else:
        yield key, to_number(leaf)


def to_number(value: Any) -> float | int | None:
    """An int or float of the same value; None for whatever is not a number (strings among it)."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value)
    except OverflowError:  # 10**400, or a Fraction of that size
        return math.inf
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, int) else number


def stable_text(value: Any) -> str:
    """A value as text that is the same in every process: no addresses, keys in order."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {stable_text(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(stable_text, value)) + "]"
    if isinstance(value, set | frozenset):
        return "[" + ", ".join(sorted(map(stable_text, value))) + "]"
    if value is None or isinstance(value, str | int | float | bool | Path):
        return str(value).encode(errors="backslashreplace").decode()  # half a character is none that a server stores
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{getattr(value, '__module__', '')}.{name}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
