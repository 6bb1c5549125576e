"""The head's network, in MiMo's layout (vLLM's mimo_mtp): norms, a projection, one transformer layer, a norm.

At position t it takes the policy's hidden state there (before the final norm, as vLLM's MiMo hands it out) and the
embedding of token t + 1; the shared LM head makes of its output the law of token t + 2. Applied to its own output and
the next token it goes one further, and so on. It lives on the last pipeline stage.

Shapes: S positions, B rows, H hidden, D head size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.transformer.transformer_layer import TransformerLayer

from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.models.architecture import Architecture
from nemo_specrl.policy.megatron.model import compute_dtype, transformer_config
from nemo_specrl.policy.megatron.parallel import ParallelLayout
from nemo_specrl.policy.megatron.rotary import inverse_frequencies
from nemo_specrl.policy.mtp.attention import RecurrentAttention

if TYPE_CHECKING:
    from jaxtyping import Float


class MtpHead(torch.nn.Module):
    """This rank's shard; parameters are uninitialised until `weights.reader` gives what fills them."""

    def __init__(self, architecture: Architecture, config: PolicyConfig, layout: ParallelLayout) -> None:
        super().__init__()
        self._frequencies = inverse_frequencies(architecture).to(layout.device)
        # One layer on one stage, whatever the policy's pipeline is; Megatron numbers layers by these.
        one = replace(architecture, num_layers=1)
        megatron = transformer_config(one, replace(config, recompute=False), replace(layout, pp=1), fused=False)
        spec = get_gpt_layer_local_spec(qk_layernorm=architecture.qk_norm, normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = RecurrentAttention
        norm, eps = architecture.hidden_size, architecture.norm_eps
        self.token_layernorm = torch.nn.RMSNorm(norm, eps=eps)
        self.hidden_layernorm = torch.nn.RMSNorm(norm, eps=eps)
        self.input_proj = ColumnParallelLinear(
            2 * norm, norm, config=megatron, init_method=megatron.init_method, bias=False, gather_output=True
        )
        self.layer = TransformerLayer(megatron, spec.submodules)
        self.final_layernorm = torch.nn.RMSNorm(norm, eps=eps)
        self.to(device=layout.device, dtype=compute_dtype(config, layout.device))

    def forward(
        self, embedded: Float[torch.Tensor, "S B H"], hidden: Float[torch.Tensor, "S B H"], depth: int
    ) -> list[Float[torch.Tensor, "S B H"]]:
        """([S, B, H] embeddings of the inputs, [S, B, H] hidden states) -> [S, B, H] for each depth.

        Entry d - 1 at position t has used the tokens up to t + d; past the end of a row it means nothing."""
        attention: Any = self.layer.self_attention.core_attention
        attention.start()
        state, outputs = hidden, []
        for d in range(1, depth + 1):
            tokens = torch.zeros_like(embedded)
            tokens[: len(tokens) - d] = embedded[d:]
            if d == 1:
                tokens[0] = 0  # as MiMo does at position 0
            x, _ = self.input_proj(torch.cat([self.hidden_layernorm(state), self.token_layernorm(tokens)], dim=-1))
            x, _ = self.layer(x, attention_mask=None, rotary_pos_emb=self._angles(len(tokens), first=d - 1))
            state = self.final_layernorm(x)
            outputs.append(state)
        attention.start()
        return outputs

    def _angles(self, length: int, first: int) -> Float[torch.Tensor, "{length} 1 1 D"]:
        """[S, 1, 1, D] fp32 rotary angles of positions first, first + 1, ..., as Megatron takes them."""
        positions = torch.arange(first, first + length, device=self._frequencies.device)
        angles = torch.outer(positions.float(), self._frequencies)
        return torch.cat([angles, angles], dim=-1)[:, None, None, :]
