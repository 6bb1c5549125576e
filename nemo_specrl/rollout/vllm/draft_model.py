"""vLLM models for families whose MTP head vLLM has none of: a trunk that hands out what the head wants, and the head.

vLLM's own MiMo classes are a Qwen2 trunk with one MTP layer. Here is the same head on the decoder layer of any dense
family, in vLLM's EAGLE interface. The head reads the trunk's hidden states *before* the final norm, as MiMo's does,
and EAGLE's interface passes what the trunk returns: so the trunk's final norm moves into `compute_logits`.

Registered by plugin.py; imported inside vLLM only. Written against vLLM 0.25.1, 0.32 and 0.33 (versions.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2DecoderLayer, Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3DecoderLayer, Qwen3ForCausalLM
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, maybe_prefix


class DeferredNorm(RMSNorm):  # type: ignore[misc]
    """The trunk's final norm: with a residual it only adds (the call at the end of the trunk), alone it normalises."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return super().forward(x) if residual is None else (x + residual, residual)


class _Trunk:
    """Mixed into a vLLM causal LM whose model ends in `self.norm(hidden, residual)`: norm after, not before, the
    hidden states are handed out."""

    model: Any
    config: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.model.norm = DeferredNorm(self.config.hidden_size, eps=self.config.rms_norm_eps)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """[n, hidden] un-normed -> [n, vocab]."""
        logits: torch.Tensor | None = super().compute_logits(self.model.norm(hidden_states))  # type: ignore[misc]
        return logits


class SpecrlLlamaForCausalLM(_Trunk, LlamaForCausalLM):  # type: ignore[misc]
    """Llama for an MTP head."""


class SpecrlQwen2ForCausalLM(_Trunk, Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2 for an MTP head."""


class SpecrlQwen3ForCausalLM(_Trunk, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3 for an MTP head."""


def _decoder_layer(vllm_config: VllmConfig, config: Any, prefix: str) -> nn.Module:
    """One decoder layer of the trunk's family, with the trunk's shapes."""
    if config.specrl_family == "llama":
        layer: nn.Module = LlamaDecoderLayer(vllm_config, prefix=prefix, config=config)
    else:
        kind = {"qwen2": Qwen2DecoderLayer, "qwen3": Qwen3DecoderLayer}[config.specrl_family]
        layer = kind(config=config, cache_config=vllm_config.cache_config, quant_config=None, prefix=prefix)
    return layer


class MtpLayer(nn.Module):
    """proj([norm(hidden_t); norm(embed(x_{t+1}))]) -> decoder layer -> norm. MiMo's (arXiv 2505.07608, section 2.2)."""

    def __init__(self, vllm_config: VllmConfig, config: Any, prefix: str) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.token_layernorm = RMSNorm(width, eps=eps)
        self.hidden_layernorm = RMSNorm(width, eps=eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.block = _decoder_layer(vllm_config, config, prefix)
        self.final_layernorm = RMSNorm(width, eps=eps)

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """embeds, hidden_states [n, hidden]; positions [n]. The first position's embedding counts as zero."""
        embeds = torch.where(positions.unsqueeze(-1) == 0, 0, embeds)
        joined = torch.cat([self.hidden_layernorm(hidden_states), self.token_layernorm(embeds)], dim=-1)
        hidden, residual = self.block(positions, self.input_proj(joined), None)
        out: torch.Tensor = self.final_layernorm(hidden + residual)
        return out


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "hidden_states": 0})  # type: ignore[untyped-decorator]
class MtpModel(nn.Module):
    """Embedding (the trunk's, once vLLM has shared it) and the one layer, numbered behind the trunk's."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.speculative_config.draft_model_config.hf_config
        start = vllm_config.model_config.get_num_layers(vllm_config.parallel_config)
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.mtp_layers = nn.ModuleList([MtpLayer(vllm_config, config, maybe_prefix(prefix, f"layers.{start}"))])

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.mtp_layers[0](self.embed_tokens(input_ids), positions, hidden_states)
        return hidden, hidden


class EagleSpecrlForCausalLM(nn.Module):
    """The head as vLLM's EAGLE proposer drives it. It declares no embedding or LM head of its own (`has_own_*`), so
    the proposer puts the trunk's in their place."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_substr={
            f".{part}.": f".block.{part}."
            for part in ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
        },
        orig_to_new_stacked={
            ".q_proj": (".qkv_proj", "q"),
            ".k_proj": (".qkv_proj", "k"),
            ".v_proj": (".qkv_proj", "v"),
            ".gate_proj": (".gate_up_proj", 0),
            ".up_proj": (".gate_up_proj", 1),
        },
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.speculative_config.draft_model_config.hf_config
        self.model = MtpModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.logits_processor = LogitsProcessor(self.config.vocab_size)
        self.lm_head: Any = None

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.model.embed_tokens(input_ids)
        return embeds

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden states for the logits, hidden states for the next depth): the same [n, hidden], as in MiMo."""
        assert inputs_embeds is None, "a text-only head"
        result: tuple[torch.Tensor, torch.Tensor] = self.model(input_ids, positions, hidden_states)
        return result

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits: torch.Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """The names that were loaded, for vLLM to miss the others; the embedding comes from the trunk."""
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded | {"model.embed_tokens.weight"}
