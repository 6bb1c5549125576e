"""How an MTP draft head lies in a folder: MiMo's names, which the trainer writes and vLLM reads.

A head's folder is the model's config.json with `num_nextn_predict_layers: 1`, and safetensors with these names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from nemo_specrl.models.folder import shapes

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Tensor names -> shapes."""

PREFIX = "model.mtp_layers."
"""What the names of a head's tensors begin with."""
LAYER = f"{PREFIX}0."
"""Layer 0 is the only one: it is applied to its own output."""
NORMS = ("token_layernorm", "hidden_layernorm", "final_layernorm")
PROJECTION = "input_proj"
_MUST_AGREE = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "rms_norm_eps", "hidden_act")
"""Keys of config.json that tensor shapes don't tell."""
COUNT = "num_nextn_predict_layers"
"""Key of config.json that says how many layers there are."""


def own_tensors(hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of what the head has beside a transformer layer."""
    found: dict[str, tuple[int, ...]] = {f"{LAYER}{norm}.weight": (hidden_size,) for norm in NORMS}
    return found | {f"{LAYER}{PROJECTION}.weight": (hidden_size, 2 * hidden_size)}


def check_source(source: str, model: Path) -> int:
    """How many head layers drafter.head.source holds for this model; `source` is `native` or a folder.

    ValueError when it promises a head and holds none, or one that was made for another model."""
    where = model if source == "native" else Path(source)
    promised = _promised(where)
    found = {name.removeprefix(PREFIX).split(".")[0] for name in shapes(where) if name.startswith(PREFIX)}
    if not found:
        says = f"its config.json promises {promised}" if promised else "its config.json promises none either"
        raise ValueError(
            f"drafter.head.source={source}: no {PREFIX}* weights in {where} ({says}): start with "
            "drafter.head.source=scratch and experiment=draft_warmup, or give a folder that a warm-up wrote"
        )
    if promised > len(found):
        raise ValueError(
            f"{where}: config.json promises {promised} draft heads ({COUNT}), but the weights hold {len(found)}: "
            "the folder is incomplete"
        )
    theirs, ours = (json.loads((folder / "config.json").read_text()) for folder in (where, model))
    for key in _MUST_AGREE:
        if key in theirs and key in ours and theirs[key] != ours[key]:
            raise ValueError(
                f"drafter.head.source={where}: it was made for a model with {key}={theirs[key]}, and the policy has "
                f"{ours[key]}. Give a head that was trained for this model, or start from scratch"
            )
    return len(found)


def check_head(trunk: Shapes, head: Shapes, config: Mapping[str, Any]) -> None:
    """ValueError unless the head has exactly the tensors, with the shapes, that a head of this trunk has."""
    layer = "model.layers.0."
    want = {LAYER + n.removeprefix(layer): s for n, s in trunk.items() if n.startswith(layer) and "rotary" not in n}
    want |= own_tensors(int(config["hidden_size"]))
    for name in sorted(want.keys() | head.keys()):
        if want.get(name) != head.get(name):
            raise ValueError(
                f"the MTP head does not fit the model: {name} should be {want.get(name, 'absent')} and is "
                f"{head.get(name, 'absent')}. Give drafter.head.source a head that was trained for this model"
            )


def _promised(folder: Path) -> int:
    path = folder / "config.json"
    try:
        return int(json.loads(path.read_text()).get(COUNT) or 0)
    except FileNotFoundError:
        raise ValueError(
            f"drafter.head.source: {path} is missing; give scratch, native or a folder that a warm-up wrote"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a head's config ({error}): warm the head up again") from error
