"""The built-in task: sums, differences and products of graded difficulty. Deterministic, nothing to download."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nemo_specrl.config.data import DataConfig

_SYMBOLS = "+-*"
_TRIES = 200


def arithmetic_problems(config: DataConfig) -> Iterator[tuple[str, str, str]]:
    """`config.size` distinct (expression, answer, grade), such as ("12 + 7", "19", "2x2"): grade = digits x terms.

    The grades take turns, so every stretch of the data is as hard as the whole; a grade that has run out of distinct
    problems leaves its turn to the others. ValueError when all have.
    """
    _check(config)
    rng = np.random.Generator(np.random.Philox(config.seed))
    grades = [
        (digits, terms)
        for terms in range(config.terms[0], config.terms[1] + 1)
        for digits in range(config.digits[0], config.digits[1] + 1)
    ]
    seen: set[str] = set()
    while len(seen) < config.size:
        if not grades:
            raise ValueError(
                f"data.size={config.size}, but digits={tuple(config.digits)}, terms={tuple(config.terms)}, operations="
                f"{config.operations!r} gave only {len(seen)} distinct problems. Lower data.size or widen them."
            )
        for digits, terms in list(grades):
            fresh = (text for text in (_expression(rng, digits, terms, config.operations) for _ in range(_TRIES)))
            text = next((text for text in fresh if text not in seen), None)
            if text is None:
                grades.remove((digits, terms))
            elif len(seen) < config.size:
                seen.add(text)
                yield text, str(_value(text)), f"{digits}x{terms}"


def _expression(rng: np.random.Generator, digits: int, terms: int, operations: str) -> str:
    low = 0 if digits == 1 else 10 ** (digits - 1)
    operands = rng.integers(low, 10**digits, size=terms)
    symbols = rng.integers(len(operations), size=terms - 1)
    return str(operands[0]) + "".join(f" {operations[s]} {n}" for s, n in zip(symbols, operands[1:], strict=True))


def _value(expression: str) -> int:
    """Of terms joined by + - *, the product first."""
    total = 0
    for part in expression.replace("- ", "+ -").split(" + "):
        product = 1
        for factor in part.split(" * "):
            product *= int(factor)
        total += product
    return total


def _check(config: DataConfig) -> None:
    if not config.operations or set(config.operations) - set(_SYMBOLS):
        raise ValueError(f"data.operations={config.operations!r} must name some of {_SYMBOLS}.")
    for name, pair in (("digits", config.digits), ("terms", config.terms)):
        if len(pair) != 2:
            raise ValueError(f"data.{name}={tuple(pair)} must be a pair, e.g. [1,2].")
    if not 1 <= config.digits[0] <= config.digits[1] <= 9:
        raise ValueError(f"data.digits={tuple(config.digits)} must be an ascending pair within 1 to 9.")
    if not 2 <= config.terms[0] <= config.terms[1]:
        raise ValueError(f"data.terms={tuple(config.terms)} must be an ascending pair from 2 on.")
    if config.seed < 0:
        raise ValueError(f"data.seed={config.seed} must not be negative.")
    if config.size < 1:
        raise ValueError(f"data.size={config.size} must be positive.")
