"""Prompts: from a source to token ids, and from there to steps."""

from nemo_specrl.data.identity import DataIdentity, as_json, changes, prompts_digest
from nemo_specrl.data.order import epoch_order, split_validation
from nemo_specrl.data.prompts import PromptData, load_prompt_data, load_prompts

__all__ = [
    "DataIdentity",
    "PromptData",
    "as_json",
    "changes",
    "epoch_order",
    "load_prompt_data",
    "load_prompts",
    "prompts_digest",
    "split_validation",
]
