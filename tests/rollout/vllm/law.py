"""The law that an engine should sample from, computed by transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_specrl.contracts.engine import GenerationRequest
from nemo_specrl.types import IntArray

EOS = 1
MAX_LENGTH = 256


def conditional_logprobs(
    model: Any, request: GenerationRequest, token_ids: IntArray, temperature: float, top_p: float
) -> NDArray[np.float32]:
    """[T, V] log-law of each of the [T] tokens that follow the request's context."""
    context = [*request.prompt_ids.tolist(), *request.prefix_ids.tolist()]
    with torch.no_grad():
        logits = model(torch.tensor([context + token_ids.tolist()])).logits[0, len(context) - 1 : -1].float()
    logits = logits / temperature
    if top_p < 1:
        ordered, order = logits.softmax(-1).sort(dim=-1, descending=True)
        outside = ordered.cumsum(-1) - ordered >= top_p
        logits = logits.masked_fill(outside.scatter(1, order, outside), -torch.inf)
    law: NDArray[np.float32] = logits.log_softmax(-1).numpy()
    return law
