"""Node lists in Slurm's notation, checked before a job waits for hours. Inside a job Slurm itself expands them.

No library, though there are two well-kept ones: of the 27 lists that our tests call malformed, python-hostlist 2.3.0
(GPL) takes 11, `node[001-02]` and `a,,b` among them; ClusterShell 1.10.1 (LGPL, wants PyYAML) takes 9, `node[-1]` as a
name among them, sorts the nodes, whose order says which is the head, and refuses `a[1][2]`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MAX_NODES = 65536
_NAME = re.compile(r"[A-Za-z0-9._-]*")
_ITEM = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> list[str]:
    """The host names of a list such as `a[1-3,07],b2u[05,02]n3,c`, in the order written.

    Several bracket groups in one name multiply, the last one fastest; zero padding is kept; spaces around a name are
    allowed. Raises ValueError for anything malformed: a guess here starts a job on the wrong nodes.
    """
    names: list[str] = []
    for term in _terms(text):
        names.extend(_names(term, text, MAX_NODES - len(names)))
    return names


def _error(text: str, why: str) -> ValueError:
    return ValueError(f"malformed node list {text!r}: {why}; write for example node[01-04,07],login1")


def _terms(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth = 0
    start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
            if depth > 1:
                raise _error(text, "brackets inside brackets")
        elif character == "]":
            depth -= 1
            if depth < 0:
                raise _error(text, "a ] without its [")
        elif character == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    if depth:
        raise _error(text, "a [ without its ]")
    yield text[start:].strip()


def _names(term: str, text: str, room: int) -> Iterator[str]:
    if not term:
        raise _error(text, "an empty name")
    pieces = re.split(r"\[(.*?)\]", term)
    literals, groups = pieces[::2], pieces[1::2]
    if any(_NAME.fullmatch(literal) is None for literal in literals):
        raise _error(text, f"{term!r} holds a character that no host name has")
    choices = [_numbers(group, text, room) for group in groups]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > room:
        raise _error(text, f"more than {MAX_NODES} nodes")
    for combination in itertools.product(*choices):
        yield literals[0] + "".join(number + rest for number, rest in zip(combination, literals[1:], strict=True))


def _numbers(group: str, text: str, room: int) -> list[str]:
    numbers: list[str] = []
    for item in group.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _error(text, f"{item!r} is neither a number nor a range")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _error(text, f"the range {item!r} runs backwards")
        if len(last) < len(first):
            raise _error(text, f"the range {item!r} loses its padding")
        if int(last) - int(first) >= room:
            raise _error(text, f"more than {MAX_NODES} nodes")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers
