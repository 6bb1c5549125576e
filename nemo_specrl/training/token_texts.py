"""A response token by token, as text that adds up to the whole."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_specrl.models import Tokenizer

_TORN = "\N{REPLACEMENT CHARACTER}"


def token_texts(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """[T] what each token adds to the text, special tokens by their names. A character that several tokens make is the
    last one's, and theirs is empty; ids that the tokenizer does not know are named.

    A token is decoded behind the ones before it, since some tokenizers drop a leading blank otherwise."""
    texts: list[str] = []
    context: list[int] = []  # what the pending tokens are decoded behind
    pending: list[int] = []
    for i, token in enumerate(token_ids):
        if token >= len(tokenizer):
            texts.append(f"[token {token}]")
            context, pending = [], []
            continue
        pending.append(token)
        before = tokenizer.decode(context)
        text = tokenizer.decode(context + pending)[len(before) :]
        last = i + 1 == len(token_ids) or token_ids[i + 1] >= len(tokenizer)
        if text.endswith(_TORN) and not last and len(pending) < 8:
            texts.append("")
        else:
            texts.append(text)
            context, pending = pending, []
    return texts
