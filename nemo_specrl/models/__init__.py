"""Pretrained models: a `ModelConfig` becomes a checked local Hugging Face folder and its tokenizer."""

from nemo_specrl.models.folder import ModelFolder, model_digest
from nemo_specrl.models.resolve import resolve_model
from nemo_specrl.models.tokenizer import Tokenizer, chat_tokens, load_tokenizer

__all__ = ["ModelFolder", "Tokenizer", "chat_tokens", "load_tokenizer", "model_digest", "resolve_model"]
