"""How many tokens each engine step gave each request, and so which of them were drafted.

A step gives a request its accepted draft tokens and then one that was sampled. vLLM counts speculation for a request as
a whole (and from 0.32 on for each step that carried a draft, but not where the steps without one lay), so we look at
what its core hands to its front, step by step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nemo_specrl.contracts.engine import SpecCounters
from nemo_specrl.types import BoolArray


class StepSizes:
    """A tap between vLLM's engine core and its output processor; it changes nothing."""

    def __init__(self, engine: Any) -> None:
        """`engine`: a vllm.v1.engine.llm_engine.LLMEngine."""
        self._sizes: dict[str, list[int]] = {}
        self._requests = engine.output_processor.request_states
        self._upstream = engine.engine_core.get_output
        engine.engine_core.get_output = self._get_output

    def _get_output(self) -> Any:
        outputs = self._upstream()
        for output in outputs.outputs:
            if output.new_token_ids:
                request = self._requests.get(output.request_id)  # newer versions add a suffix to the caller's own id
                name = getattr(request, "external_req_id", None) or output.request_id
                self._sizes.setdefault(name, []).append(len(output.new_token_ids))
        return outputs

    def take(self, request_id: str) -> list[int]:
        """Tokens of each step of a finished request; forgets them."""
        return self._sizes.pop(request_id, [])


def accepted(sizes: list[int], length: int, spec: SpecCounters | None) -> BoolArray | None:
    """[length] whether each token was drafted and accepted; None where the steps don't add up to the response.

    A response that ends inside a draft loses the tokens behind its end. Then its last token was drafted, too: the
    request's own count has more accepted tokens than are left. Without that count it is taken for sampled."""
    if sum(sizes) != length:
        return None
    ends = np.cumsum(sizes) - 1
    drafted = np.ones(length, dtype=np.bool_)
    drafted[ends] = False
    if spec is not None and spec.accepted > int(drafted.sum()):
        drafted[-1] = True
    return drafted
