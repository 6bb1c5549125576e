"""Rows -> `Prompt`s: the chat template, applied once, and the length limits, checked before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from nemo_specrl.config.data import DataConfig
from nemo_specrl.data.identity import DataIdentity, identify
from nemo_specrl.data.rows import Message, Row, is_local, load_rows
from nemo_specrl.models import Tokenizer, chat_tokens
from nemo_specrl.types import Prompt

_log = logging.getLogger(__name__)
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class PromptData:
    """What was loaded, and what a run should record of it."""

    prompts: list[Prompt]
    """In the source's order, no key twice."""
    name: str
    """The source, with its configuration and split where it has them."""
    identity: DataIdentity
    """What a resumed run must find again."""
    dropped_long: int
    """Rows left out by `drop_long_prompts`."""
    duplicates: int
    """Rows left out because an earlier one has the same prompt tokens."""
    conflicts: int
    """Of those, the rows whose answer is another than the earlier one's."""


def load_prompt_data(
    config: DataConfig, tokenizer: Tokenizer, max_length: int, max_new_tokens: int, *, rendered_on: date | None = None
) -> PromptData:
    """Read, validate and tokenise the source; lengths in tokens. ValueError names the rows at fault and the remedy.

    `rendered_on`: the date that a chat template with a date writes; None = today."""
    if "{prompt}" not in config.prompt_template:
        raise ValueError(f"data.prompt_template={config.prompt_template!r} must contain {{prompt}}.")
    rows = load_rows(config)
    day = rendered_on or date.today()
    prompts = [_prompt(row, config, tokenizer, day) for row in rows]
    limit = min(config.max_prompt_tokens, max_length - max_new_tokens)
    too_long = [row.number for row, prompt in zip(rows, prompts, strict=True) if len(prompt.token_ids) > limit]
    if too_long and not config.drop_long_prompts:
        named = ", ".join(map(str, too_long[:_MOST_NAMED])) + (", ..." if len(too_long) > _MOST_NAMED else "")
        raise ValueError(
            f"{config.source}: {len(too_long)} of {len(rows)} prompts have more than {limit} tokens (rows {named}); "
            f"the longest has {max(len(p.token_ids) for p in prompts)}. The limit is the smaller of "
            f"data.max_prompt_tokens={config.max_prompt_tokens} and model.max_length - sampling.max_new_tokens = "
            f"{max_length} - {max_new_tokens}. Change those, or set data.drop_long_prompts=true."
        )
    short = [prompt for prompt in prompts if len(prompt.token_ids) <= limit]
    unique = list({prompt.key: prompt for prompt in reversed(short)}.values())[::-1]
    conflicts = _conflicts(rows, prompts)
    data = PromptData(
        prompts=unique,
        name=":".join(part for part in (config.source, config.name, _split(config)) if part),
        identity=identify(rows, unique, day.isoformat()),
        dropped_long=len(too_long),
        duplicates=len(short) - len(unique),
        conflicts=len(conflicts),
    )
    if not unique:
        raise ValueError(f"{config.source}: none of {len(rows)} prompts fits into {limit} tokens. Raise the limit.")
    if len(unique) == 1 and len({str(row.prompt).strip() for row in rows}) > 1 and not too_long:
        raise ValueError(
            f"{config.source}: the chat template makes the same tokens of {len(rows)} different rows: it leaves out "
            "the user's message. Repair chat_template.jinja, or set model.tokenizer to a folder whose template works."
        )
    if data.dropped_long:
        _log.warning("%s: left out %d prompts of more than %d tokens", data.name, data.dropped_long, limit)
    if data.duplicates:
        _log.warning("%s: %d rows repeat an earlier prompt; each is kept once", data.name, data.duplicates)
    if conflicts:
        named = "; ".join(conflicts[:_MOST_NAMED]) + ("; ..." if len(conflicts) > _MOST_NAMED else "")
        _log.warning(
            "%s: %d rows repeat an earlier prompt with another answer (%s): the earlier answer is kept. Correct or "
            "drop one of each: a right response may be rewarded as a wrong one",
            data.name, len(conflicts), named,
        )  # fmt: skip
    return data


def load_prompts(config: DataConfig, tokenizer: Tokenizer, max_length: int, max_new_tokens: int) -> list[Prompt]:
    """Just the prompts of `load_prompt_data`."""
    return load_prompt_data(config, tokenizer, max_length, max_new_tokens).prompts


def _prompt(row: Row, config: DataConfig, tokenizer: Tokenizer, rendered_on: date) -> Prompt:
    messages = _messages(row, config)
    options = _template_options(config, tokenizer)
    try:
        ids = chat_tokens(tokenizer, messages, rendered_on=rendered_on, **options)
    except ValueError as error:
        raise ValueError(f"{config.source}, row {row.number}: {error}") from error
    if not ids:
        raise ValueError(f"{config.source}, row {row.number}: the chat template makes no tokens of it. Repair either.")
    text = row.prompt if isinstance(row.prompt, str) else messages[-1]["content"]
    return Prompt(token_ids=np.asarray(ids, dtype=np.int32), answer=row.answer, text=text, source=row.source)


def _conflicts(rows: Sequence[Row], prompts: Sequence[Prompt]) -> list[str]:
    """The rows whose prompt tokens an earlier row has with another answer."""
    first: dict[str, Row] = {}
    found = []
    for row, prompt in zip(rows, prompts, strict=True):
        earlier = first.setdefault(prompt.key, row)
        if earlier.answer != row.answer:
            found.append(f"row {earlier.number} says {earlier.answer[:40]!r}, row {row.number} {row.answer[:40]!r}")
    return found


def _messages(row: Row, config: DataConfig) -> list[Message]:
    if not isinstance(row.prompt, str):
        return row.prompt
    system = [] if config.system_prompt is None else [{"role": "system", "content": config.system_prompt}]
    # replace, not format: templates and problems are full of LaTeX braces
    return [*system, {"role": "user", "content": config.prompt_template.replace("{prompt}", row.prompt)}]


def _template_options(config: DataConfig, tokenizer: Tokenizer) -> dict[str, bool]:
    if config.enable_thinking is None:
        return {}
    if "enable_thinking" not in str(tokenizer.chat_template):
        raise ValueError(
            f"data.enable_thinking={config.enable_thinking}, but the chat template does not know it. Leave it null."
        )
    return {"enable_thinking": config.enable_thinking}


def _split(config: DataConfig) -> str | None:
    return None if is_local(config.source) else config.split
