"""What a field may hold, said beside the field: `lr: float = bounded(1e-6, at_least=0)`. One place checks them all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any

_KEY = "bound"


@dataclass(frozen=True)
class Bound:
    """Limits of a value; None = no limit on that side."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: Collection[str] = ()
    """Held as it is given: a registry may grow."""

    def fault(self, value: Any) -> str | None:
        """What is wrong with `value`, as the end of a sentence; None = nothing. A value of None is always right."""
        if value is None:
            return None
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        numbers = value if isinstance(value, tuple | list) else (value,)
        if all(self._holds(x) for x in numbers):
            return None
        return f"{'each ' if numbers is value else ''}must {self.describe()}"

    def _holds(self, x: float) -> bool:
        # Written so that NaN holds nowhere.
        return (
            (self.at_least is None or x >= self.at_least)
            and (self.above is None or x > self.above)
            and (self.at_most is None or x <= self.at_most)
            and (self.below is None or x < self.below)
        )

    def describe(self) -> str:
        """`be positive`, `be at least 1`, `lie in [0, 1)`, ..."""
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        if low is not None and high is not None:
            left, right = "[" if self.above is None else "(", "]" if self.below is None else ")"
            return f"lie in {left}{low:g}, {high:g}{right}"
        if self.above == 0:
            return "be positive"
        sides = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return "be " + " and ".join(f"{side} {limit:g}" for side, limit in sides.items() if limit is not None)


def bounded(default: Any, **limits: Any) -> Any:
    """A dataclass field with that default and those limits (`Bound`)."""
    return field(default=default, metadata={_KEY: Bound(**limits)})


def bound_of(item: Field[Any]) -> Bound | None:
    """The limits of a field; None = there are none."""
    found: Bound | None = item.metadata.get(_KEY)
    return found


def bounds(part: Any, prefix: str = "") -> Iterator[tuple[str, Any, Bound | None]]:
    """(key, value, bound) of every field of a configuration, all the way down."""
    for item in fields(part):
        value, key = getattr(part, item.name), f"{prefix}{item.name}"
        if is_dataclass(value):
            yield from bounds(value, f"{key}.")
        else:
            yield key, value, bound_of(item)


def faults(part: Any, prefix: str = "") -> Iterator[str]:
    """What is out of bounds, and what is no finite number; `prefix` ends with a dot where it is not empty."""
    for key, value, bound in bounds(part, prefix):
        if isinstance(value, float) and not math.isfinite(value):
            wrong: str | None = "must be a finite number"
        else:
            wrong = bound.fault(value) if bound else None
        if wrong is not None:
            yield f"{key}={list(value) if isinstance(value, tuple) else value}: {wrong}"


def check(part: Any, prefix: str) -> None:
    """ValueError that names every key of this part that is at fault."""
    if found := list(faults(part, f"{prefix}.")):
        raise ValueError("\n".join(found))
