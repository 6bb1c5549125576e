"""Prompts: from a source to token ids, and from there to steps."""

from nemo_specrl.data.order import epoch_order, split_validation
from nemo_specrl.data.prompts import PromptData, load_prompt_data, load_prompts

__all__ = [
    "PromptData",
    "epoch_order",
    "load_prompt_data",
    "load_prompts",
    "split_validation",
]
