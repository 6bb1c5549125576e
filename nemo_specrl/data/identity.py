"""What a run's prompts are, by their content: a resumed run goes on with the same ones, or says what has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nemo_specrl.data.rows import Row
from nemo_specrl.types import Prompt


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Numbers and text only: it is kept as JSON beside the run."""

    rows: int
    """Rows read."""
    digest: str
    """Of the rows as loaded, in order: equal data has an equal digest wherever and however it is stored."""
    unordered: str
    """Of the same rows in any order."""
    prompts: str
    """`prompts_digest`: of the rows' token ids, which the tokenizer and its chat template make, too."""
    rendered_on: str
    """The date (ISO 8601) that a chat template with a date wrote."""


def identify(rows: Sequence[Row], prompts: Sequence[Prompt], rendered_on: str) -> DataIdentity:
    """The identity of these rows, and of the prompts that were made of them."""
    lines = [json.dumps([row.prompt, row.answer, row.source], default=str).encode() for row in rows]
    return DataIdentity(len(rows), _digest(lines), _digest(sorted(lines)), prompts_digest(prompts), rendered_on)


def prompts_digest(prompts: Iterable[Prompt]) -> str:
    """36 or fewer characters that change with any prompt's tokens, its answer, or the order."""
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(prompt.key.encode() + b"\0" + prompt.answer.encode() + b"\1")
    return digest.hexdigest()


def changes(before: Mapping[str, Any], now: DataIdentity, source: str) -> str | None:
    """What has changed since the run began, in a sentence; None = nothing. `before` is an identity `as_json`."""
    if before["digest"] != now.digest:
        if before["unordered"] == now.unordered:
            return f"data.source={source} has the same {now.rows} rows in another order"
        return f"data.source={source} has other rows: {before['rows']} then, {now.rows} now (digest {now.digest})"
    if before["prompts"] != now.prompts:
        return f"the tokenizer or its chat template was edited: the rows of {source} are the same, their tokens are not"
    return None


def as_json(identity: DataIdentity) -> dict[str, Any]:
    """Plain data for `changes`."""
    return asdict(identity)


def _digest(lines: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for line in lines:
        digest.update(line + b"\n")
    return digest.hexdigest()
