"""`--fail-if`: a comparison as a check that CI can fail on."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from nemo_specrl.reporting.compare import Comparison

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
}  # fmt: skip
_EXPRESSION = re.compile(
    r"\s*(?:(?P<arm>[^:]+):)?(?P<name>[a-z_]+)(?:\.(?P<end>low|high))?\s*"
    r"(?:(?P<op><=|>=|==|<|>)\s*(?P<number>-?[\d.]+(?:e-?\d+)?)|is\s+(?P<verdict>higher|lower|equal|unknown))\s*"
)
SYNTAX = (
    "[ARM:]FIGURE[.low|.high] < | <= | > | >= | == NUMBER, or [ARM:]FIGURE is higher | lower | equal | unknown; "
    "for example 'rollout_speedup < 1.2', 'spec_rl:step_speedup.low < 1', 'reward is lower'"
)


@dataclass(frozen=True)
class Condition:
    """One parsed expression."""

    text: str
    arm: str | None
    name: str
    end: str | None
    op: str | None
    number: float
    verdict: str | None


def parse_condition(text: str) -> Condition:
    """Raises ValueError with the syntax."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise ValueError(f"--fail-if {text!r} is not understood: write {SYNTAX}")
    found = match.groupdict()
    number = float(found["number"]) if found["number"] else 0.0
    return Condition(text.strip(), found["arm"], found["name"], found["end"], found["op"], number, found["verdict"])


def failures(comparison: Comparison, condition: Condition) -> list[str]:
    """Why the condition holds, one line per arm; empty = the gate passes. A figure that is missing fails: a check that
    could not be made has not passed. Raises ValueError for an unknown figure or arm."""
    figure = comparison.figure(condition.name)
    others = [arm for arm in comparison.arms if arm != comparison.baseline] or comparison.arms
    if condition.arm is not None and condition.arm not in comparison.arms:
        raise ValueError(
            f"--fail-if {condition.text!r}: no arm {condition.arm!r}; there are {', '.join(comparison.arms)}"
        )
    found = []
    for arm in [condition.arm] if condition.arm else others:
        against, estimate = figure.contrasts.get(arm), figure.estimates[arm]
        if condition.verdict is not None:
            verdict = against.verdict if against else None
            if verdict is None or verdict == condition.verdict:
                found.append(f"{arm}: {condition.name} is {verdict or 'missing'} ({condition.text})")
            continue
        source = against if figure.measure.kind == "speedup" else estimate
        value = None
        if source is not None:
            value = getattr(source, condition.end) if condition.end else getattr(source, "value", None)
            if value is None and not condition.end and estimate is not None:
                value = estimate.mean
        if value is None:
            found.append(
                f"{arm}: {condition.name}{'.' + condition.end if condition.end else ''} is missing ({condition.text})"
            )
        elif condition.op is not None and _OPERATORS[condition.op](value, condition.number):
            found.append(f"{arm}: {condition.name} = {value:.4g} ({condition.text})")
    return found
