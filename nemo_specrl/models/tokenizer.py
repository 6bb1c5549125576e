"""The tokenizer, and the little that this package asks of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from nemo_specrl.models.folder import ModelFolder


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
    """The folder's tokenizer. ValueError when it has more tokens than the model has vocabulary rows."""
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
    return cast(Tokenizer, tokenizer)
