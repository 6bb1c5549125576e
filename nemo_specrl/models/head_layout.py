"""How an MTP draft head lies in a folder: MiMo's names, which the trainer writes and vLLM reads.

A head's folder is the model's config.json with `num_nextn_predict_layers: 1`, and safetensors with these names."""

from __future__ import annotations

PREFIX = "model.mtp_layers."
"""What the names of a head's tensors begin with."""
LAYER = f"{PREFIX}0."
"""Layer 0 is the only one: it is applied to its own output."""
NORMS = ("token_layernorm", "hidden_layernorm", "final_layernorm")
PROJECTION = "input_proj"
COUNT = "num_nextn_predict_layers"
"""Key of config.json that says how many layers there are."""


def own_tensors(hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of what the head has beside a transformer layer."""
    found: dict[str, tuple[int, ...]] = {f"{LAYER}{norm}.weight": (hidden_size,) for norm in NORMS}
    return found | {f"{LAYER}{PROJECTION}.weight": (hidden_size, 2 * hidden_size)}
