"""math-verify (0.9), with what it gets wrong put right. Runs on a worker's main thread, without time limits of its own.

Its signal-based timeouts are off: they are silent (a timeout reads as a wrong answer) and need the main thread; the
worker pool kills instead. What is put right, and tested by DEMANDS' table (issues of huggingface/Math-Verify):
- small numbers were rounded to six decimals (#14): numbers are compared exactly, or relatively where one is a decimal;
- `\\sqrt(2)` lost its argument (#41); `pi/2`, `2*pi` and `14.0 + -1.0i` were not read (#69): text is made LaTeX first;
- lists with an ellipsis were compared by their last term (#14): they are compared as text;
- sqrt(1/n) and 1/sqrt(n) differed (#64): expressions are also compared at complex points, which tells identities that
  hold almost everywhere from those that hold for positive values only, such as sqrt(x^2) = x.
"""

from __future__ import annotations

import logging
import re
from typing import Any

_ELLIPSIS = re.compile(r"\\[lcd]?dots[cbmio]?\b|\.\.\.|…")
_SQRT_PARENTHESES = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_NAMES = re.compile(r"(?<![\\A-Za-z])(pi|sqrt|sin|cos|tan|log|ln|exp|infinity|alpha|beta|theta)(?![A-Za-z])")
_LATEX_NAMES = {"infinity": r"\infty"}
_EXPONENT = re.compile(r"(?<![A-Za-z\\])(\d\.?\d*)[eE]([-+]?\d{1,3})(?![\w.])")
_PLUS_MINUS = re.compile(r"\+\s*-")
_SPACING = re.compile(r"\\(?:left|right|,|;|!|quad\b|displaystyle\b)|[\s$]")
_COMMAND = re.compile(r"\\[A-Za-z]+(?:\{[A-Za-z ]*\})?")
_PROSE = re.compile(r"[A-Za-z]{3,}")
# Off the axes, in both half-planes and of moduli that no simple identity shares.
_POINTS = ("0.71+0.43*I", "-0.53+0.89*I", "-1.37-0.61*I", "1.19-0.77*I", "-0.29-1.21*I")
_DIGITS = 30
_EXACT, _ROUNDED = 1e-20, 1e-6


def warm_up() -> None:
    """Import math-verify and compile its patterns (seconds)."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off, which is our wish
    symbolic_equal("x+1", "1+x")


def symbolic_equal(gold: str, answer: str) -> bool:
    """Whether two answers mean the same; both without markers. Raises what math-verify and sympy raise."""
    if _ELLIPSIS.search(gold) or _ELLIPSIS.search(answer):
        return _SPACING.sub("", gold) == _SPACING.sub("", answer)
    percent = "%" in gold or "%" in answer
    error: Exception | None = None
    for left in _parse(gold):
        for right in _parse(answer):
            try:
                if _equal(left, right, percent=percent):
                    return True
            except Exception as raised:  # of this pair; another may still settle it
                error = raised
    if error is not None:
        raise error
    return False


def to_latex(text: str) -> str:
    """Calculator and Python notation as LaTeX: `2*pi`, `sqrt(2)`, `4.5e33`, `14.0 + -1.0i`; LaTeX stays as it is."""
    text = _EXPONENT.sub(r"\1 \\cdot 10^{\2}", text)
    text = _PLUS_MINUS.sub("-", text)
    text = _NAMES.sub(lambda match: _LATEX_NAMES.get(match[1], "\\" + match[1]), text)
    while (changed := _SQRT_PARENTHESES.sub(r"\\sqrt{\1}", text)) != text:
        text = changed
    text = text.replace("**", "^")
    return re.sub(r"(?<!\\)\*", r"\\cdot ", text)


def _parse(text: str) -> list[Any]:
    from math_verify import parse

    # An answer's own text is boxed, so that all of it is read; prose is searched for its last formula.
    bare = not _PROSE.search(_COMMAND.sub("", _NAMES.sub("", text)))
    wrapped = f"\\boxed{{{to_latex(text)}}}" if bare else _SQRT_PARENTHESES.sub(r"\\sqrt{\1}", text)
    return list(parse(wrapped, parsing_timeout=None, raise_on_error=True))


def _equal(gold: Any, answer: Any, *, percent: bool) -> bool:
    import sympy  # type: ignore[import-untyped]
    from math_verify import verify

    # a percentage is a product that math-verify reads in two ways; leave that to it
    comparable = isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr) and not percent
    left, right = (_complex(gold), _complex(answer)) if comparable else (gold, answer)
    if comparable and left.is_number and right.is_number:
        close = _close(left, right)
        if close is not None:
            return close
    if verify(gold, answer, timeout_seconds=None, raise_on_error=True):
        return True
    return bool(comparable and left.free_symbols == right.free_symbols and _equal_at_points(left, right))


def _complex(expression: Any) -> Any:
    """With plain complex symbols: the parser makes the same letter real in one formula and not in the next, and i a
    symbol."""
    import sympy  # type: ignore[import-untyped]

    return expression.subs(
        {s: sympy.I if s.name == "i" else sympy.Symbol(s.name) for s in expression.free_symbols}
    ).doit()


def _close(a: Any, b: Any) -> bool | None:
    """Equal numbers, exactly or to six places where one is a decimal; None where they have no finite value."""
    import sympy  # type: ignore[import-untyped]

    left, right = (sympy.N(value, _DIGITS) for value in (a, b))
    difference, scale = sympy.Abs(left - right), sympy.Max(sympy.Abs(left), sympy.Abs(right))
    if not (difference.is_Number and scale.is_Number and scale.is_finite):
        return None
    tolerance = _ROUNDED if a.has(sympy.Float) or b.has(sympy.Float) else _EXACT
    return bool(difference <= tolerance * scale)


def _equal_at_points(a: Any, b: Any) -> bool:
    import sympy  # type: ignore[import-untyped]

    symbols = sorted(a.free_symbols, key=str)
    if not symbols:
        return False
    for shift in range(len(_POINTS)):
        values = {
            symbol: sympy.sympify(_POINTS[(shift + i) % len(_POINTS)]) * (1 + sympy.Rational(i, 7))
            for i, symbol in enumerate(symbols)
        }
        if not _close(a.subs(values), b.subs(values)):
            return False
    return True
