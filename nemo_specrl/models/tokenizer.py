"""The tokenizer, and the little that this package asks of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, Protocol, cast

from nemo_specrl.models.folder import ModelFolder, vocabulary

_MOVED = 0.01
"""Share of tokens that may differ: siblings rename a few special ones."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    @property
    def eos_token_id(self) -> int | None: ...

    @property
    def pad_token_id(self) -> int | None: ...

    @property
    def chat_template(self) -> str | None: ...

    def __len__(self) -> int: ...

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **kwargs: Any) -> Any: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...


def load_tokenizer(folder: ModelFolder) -> Tokenizer:
    """The folder's tokenizer. ValueError when it has more tokens than the model has vocabulary rows, or other tokens
    than the model's own tokenizer, where `model.tokenizer` names another."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder.tokenizer_path)
    except Exception as error:  # transformers and tokenizers raise bare Exceptions on broken files
        raise ValueError(f"the tokenizer in {folder.tokenizer_path} does not load: {error}. Save it again.") from error
    if len(tokenizer) > folder.vocab_size:
        raise ValueError(
            f"the tokenizer in {folder.tokenizer_path} has {len(tokenizer)} tokens, but {folder.name} only "
            f"{folder.vocab_size} vocabulary rows: they don't belong together. Set model.tokenizer to the model's own "
            f"(null), or enlarge the model with resize_token_embeddings."
        )
    if folder.tokenizer_path != folder.path:
        _check_same_tokens(folder)
    return cast(Tokenizer, tokenizer)


def chat_tokens(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], *, rendered_on: date, **options: Any
) -> list[int]:
    """Token ids of a chat up to where the assistant speaks. Straight to ids: rendering to text and tokenising that
    would add a second beginning-of-sequence token.

    A template that writes today's date (`strftime_now`, Llama 3.1 and later) writes `rendered_on`, 0:00: a run keeps
    its prompts, and what it stores by their tokens, past midnight. ValueError where the tokenizer has no template, or
    the template does not parse or refuses the chat.
    """
    template = tokenizer.chat_template
    if not template:
        raise ValueError(
            "the tokenizer has no chat template (a base model?). Set model.tokenizer to the instruct model's, "
            "or put a chat_template.jinja into the model's folder."
        )
    if "strftime_now" in str(
        template
    ):  # a variable of the template's own name goes before transformers' global function
        options["strftime_now"] = datetime.combine(rendered_on, time()).strftime
    try:
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **options
        )
    except Exception as error:  # a template is a program: it may raise whatever jinja and Python do
        line = f", line {error.lineno}" if hasattr(error, "lineno") else ""
        raise ValueError(
            f"the chat template{line}: {type(error).__name__}: {error}. Repair chat_template.jinja (or chat_template "
            "in tokenizer_config.json) in the model's folder, or set model.tokenizer to a folder whose template works"
            + ("; for one that knows no system message set data.system_prompt=null." if _has_system(messages) else ".")
        ) from error
    return list(ids)


def _has_system(messages: Sequence[Mapping[str, str]]) -> bool:
    return any(message["role"] == "system" for message in messages)


def _check_same_tokens(folder: ModelFolder) -> None:
    """A base model takes its instruct sibling's tokenizer (the same tokens and a chat template), and no other: prompts
    would be other tokens than the model learnt, which no length betrays."""
    own, other = vocabulary(folder.path), vocabulary(folder.tokenizer_path)
    moved = sum(other.get(token) != number for token, number in own.items()) if other else 0
    if moved > _MOVED * len(own):
        raise ValueError(
            f"the tokenizer in {folder.tokenizer_path} is not {folder.name}'s: {moved} of its {len(own)} tokens have "
            "other ids there. Set model.tokenizer to the model's own (null) or to one of the same family."
        )
