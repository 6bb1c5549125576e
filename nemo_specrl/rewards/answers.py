"""Where the answer stands in a response, and plain numbers. Text in, text and exact fractions out; no sympy. Ours."""

from __future__ import annotations

import re
from fractions import Fraction

_BOXED = re.compile(r"\\f?boxed\s*\{")
_MARKER = re.compile(r"(?:\banswer(?:\s|\*)*(?:is|:|=)(?:\s|\*)*:?|####)[ \t]*", flags=re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[^\s.\\])[.!?](?=\s|$).*")
_NUMBER = r"[-+−]?\s?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:(?<=\d)\.\d*|(?<!\d)\.\d+)?(?:(?<=\d)[eE][-+]?\d{1,3})?"
_THIN = re.compile(r",\\!\s*(?=\d{3})")  # MATH writes thousands as 11,\! 111
_PLAIN = re.compile(rf"(?P<top>{_NUMBER})(?:\s?/\s?(?P<bottom>\d+))?\s?(?P<percent>\\?%)?")
_FRACTION = re.compile(r"(?P<sign>[-+−]?)\s?\\[dtc]?frac\s*\{\s*(?P<top>-?\d+)\s*\}\s*\{\s*(?P<bottom>\d+)\s*\}")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("{", "}"))
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{\s*([^{}]*?)\s*\}")
_MATHS = re.compile(r"[\\^_$]")
_WORD = re.compile(r"\S*\d\S*")
_SEVERAL = re.compile(r"[;!<>]|,(?!\d)|\b(?:or|and)\b", flags=re.IGNORECASE)
_CLOSE = Fraction(1, 10**6)


def extract_answer(text: str) -> str | None:
    """The answer's own text: of the last `\\boxed{}`; else what follows the last "answer is", "Answer:" or "####";
    else all of the text. None when the last box is never closed: the response was cut before it answered.

    Idempotent: what it returns has no marker left in it, so extracting twice changes nothing (slime#1246).
    """
    while True:
        boxes = list(_BOXED.finditer(text))
        if boxes:
            inner = _balanced(text, boxes[-1].end())
            # a box inside a box starts later but belongs to the outer one, which the next round unwraps
            if inner is None:
                return None
        else:
            spans = _spans(text)
            if not spans:
                return _unwrap(text)
            inner = _SENTENCE_END.sub("", spans[-1])
        text = inner


def is_marked(text: str) -> bool:
    """Whether the text says which part of it is the answer."""
    return bool(_BOXED.search(text) or _spans(text))


def plain_number(text: str) -> tuple[Fraction, bool] | None:
    """(value, whether a percent sign followed) of "7", "-1,234.50", "3/4", "\\frac{3}{4}", "4.5e33", "50\\%";
    else None."""
    text = _THIN.sub(",", _unwrap(text))
    match = _FRACTION.fullmatch(text) or _PLAIN.fullmatch(text)
    if match is None or not any(character.isdigit() for character in match["top"]):
        return None
    named = match.groupdict()
    top = Fraction(named["top"].replace("−", "-").replace(" ", "").replace(",", "").rstrip("."))
    bottom = int(named.get("bottom") or 1)
    if bottom == 0:
        return None
    sign = -1 if named.get("sign") in ("-", "−") else 1
    return sign * top / bottom, named.get("percent") is not None


def last_number(text: str) -> tuple[Fraction, bool] | None:
    """The number that prose ends on ("3 + 4 = 7."); None where the last thing with a digit in it is more than a plain
    number, or the text has formulas in it: those are for the symbolic comparison."""
    if _MATHS.search(text):
        return None
    words = list(_WORD.finditer(text.replace("*", " ")))
    if not words:
        return None
    word = words[-1]
    found = plain_number(word[0].strip("\"'()[]=:;,.!?€£"))
    before = text.replace("*", " ")[: word.start()].rstrip()
    if found is None or before[-1:] == "/":
        return None
    # "= - 7" is minus seven, "12 - 7" is not
    minus = before[-1:] in ("-", "−") and not re.search(r"[\d)]\s*[-−]$", before)
    return (-found[0], found[1]) if minus else found


def only_number(text: str) -> tuple[Fraction, bool] | None:
    """The one number of an answer's text: "7", "7 apples", "x = 7"; None where it has several or more than a number."""
    return plain_number(text) or (last_number(text) if len(_WORD.findall(text)) == 1 else None)


def equation_end(text: str) -> tuple[Fraction, bool] | None:
    """The number that an equation ends on ("3 + 4 = 7"); None where there are several ("x = 3 or x = 7")."""
    head, equals, end = text.rpartition("=")
    return only_number(end) if equals and not _SEVERAL.search(head) else None


def same_number(gold: tuple[Fraction, bool], answer: tuple[Fraction, bool]) -> bool:
    """Equal values; a decimal may be rounded to six places of a fraction. A percent sign on one side only may mean a
    hundredth or be a unit that the other side left out, since data sets write "what percent?" both ways."""
    (a, a_percent), (b, b_percent) = gold, answer
    if a_percent == b_percent:
        return _close(a, b)
    return _close(a, b) or (_close(a / 100, b) if a_percent else _close(a, b / 100))


def _spans(text: str) -> list[str]:
    """What follows each of "answer is", "Answer:", "####" on its line, where something does."""
    spans = (text[match.end() :].partition("\n")[0] for match in _MARKER.finditer(text))
    return [span for span in spans if span.strip()]


def _close(a: Fraction, b: Fraction) -> bool:
    whole = a.denominator == 1 and b.denominator == 1
    return a == b or (not whole and abs(a - b) <= _CLOSE * max(abs(a), abs(b)))


def _balanced(text: str, start: int) -> str | None:
    """From `start`, just behind an opening brace, to the brace that closes it; None when none does."""
    depth = 1
    escaped = False
    for position in range(start, len(text)):
        character = text[position]
        if not escaped and character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return text[start:position]
        escaped = character == "\\" and not escaped
    return None


def _unwrap(text: str) -> str:
    """Without surrounding blanks, full stops, dollar signs, bold marks, and \\text around the whole."""
    while True:
        before = text
        text = text.strip(" \t\r\n\u200b*").rstrip(".,;:!").removeprefix("\\displaystyle").removeprefix("\\$")
        if text.startswith("$") and text.count("$") == 1:  # a currency's
            text = text[1:]
        for left, right in _WRAPPERS:
            inside = text[len(left) : -len(right)]
            wrapped = len(text) > len(left + right) and text.startswith(left) and text.endswith(right)
            if wrapped and right not in inside and left not in inside and not text.endswith("\\" + right):
                text = inside
        whole = _TEXT.fullmatch(text)
        text = whole[1] if whole else text
        if text == before:
            return text
