"""The tokenizer, and the little that this package asks of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
