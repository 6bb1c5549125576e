"""Megatron's GPTModel for a Hugging Face architecture: this rank's shard, without weights.

Shapes: S positions, B rows, H hidden, N selected positions, V vocabulary.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.models.architecture import Architecture
from nemo_specrl.policy.megatron.attention import FusedCausalAttention
from nemo_specrl.policy.megatron.cpu import fast_bf16
from nemo_specrl.policy.megatron.parallel import ParallelLayout
from nemo_specrl.policy.megatron.rotary import inverse_frequencies

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def compute_dtype(config: PolicyConfig, device: torch.device) -> torch.dtype:
    """The dtype that parameters are stored and multiplied in: `config.dtype`, but for CPUs without bf16 kernels.
    There the bf16 weights, exact as fp32 numbers, are multiplied in fp32."""
    if config.dtype == "bf16" and device.type == "cpu" and not fast_bf16():
        return torch.float32
    return DTYPES[config.dtype]


class PackedRotary(RotaryEmbedding):  # type: ignore[misc]
    """Rotary angles at given positions, where tokens of several rows lie in one sequence."""

    positions: torch.Tensor | None = None
    """[M] of the packed micro-batch in work; None for rows side by side, whose positions count from 0."""

    def forward(self, max_seq_len: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        """[M, 1, 1, D] angles, fp32."""
        if self.positions is None:
            return super().forward(max_seq_len, *args, **kwargs)  # type: ignore[no-any-return]
        angles = torch.outer(self.positions.to(self.inv_freq.dtype), self.inv_freq)
        return torch.cat([angles, angles], dim=-1)[:, None, None, :]


class PolicyModel(GPTModel):  # type: ignore[misc]
    """A GPTModel whose forward ends at the final norm: the LM head is applied to the positions that need it.

    The two overridden hooks are Megatron's own; `build_model` checks that they are still there."""

    packs: bool
    """Whether it takes packed micro-batches: `FusedCausalAttention` does, Transformer Engine's attention does not."""

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, cells: torch.Tensor | None, **kwargs: Any
    ) -> torch.Tensor:
        """[1, M] packed tokens with the micro-batch's `cells`, or [B, S] padded ones with None -> hidden states
        [M, 1, H] or [S, B, H]."""
        self.rotary_pos_emb.positions = None if cells is None else position_ids[0]
        return super().forward(input_ids, position_ids, cells, **kwargs)  # type: ignore[no-any-return]

    def _postprocess(self, hidden_states: torch.Tensor, **_unused: Any) -> torch.Tensor:
        """[S, B, H] hidden states: the final norm's on the last stage, else what the next stage takes."""
        return hidden_states

    def _is_in_embd_group(self) -> bool:
        """Both holders of a tied embedding read it from the checkpoint, so there is nothing to copy at the start."""
        return False

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, H] final-norm hidden states -> [N, V / tp (padded)] logits of this rank's share of the vocabulary."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(hidden.unsqueeze(1), weight=weight)
        return logits.squeeze(1)  # type: ignore[no-any-return]


def padded_vocab(architecture: Architecture, layout: ParallelLayout) -> int:
    """The vocabulary rounded up to a multiple of TP."""
    return -(-architecture.vocab_size // layout.tp) * layout.tp


def transformer_config(
    architecture: Architecture, config: PolicyConfig, layout: ParallelLayout, *, fused: bool
) -> TransformerConfig:
    """Megatron's configuration. `fused` turns on the kernels that need Transformer Engine."""
    dtype = compute_dtype(config, layout.device)
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_dim,
        layernorm_epsilon=architecture.norm_eps,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        qk_layernorm=architecture.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        variable_seq_lengths=layout.pp > 1,
        moe_token_dispatcher_type="alltoall",  # Megatron asks for it with variable lengths, experts or not
        use_cpu_initialization=True,
        perform_initialization=False,
        # The loss is a plain sum over micro-batches and ranks: Megatron must neither average nor rescale it.
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        persist_layer_norm=fused,
        bias_activation_fusion=fused,
        bias_dropout_fusion=fused,
        masked_softmax_fusion=fused,
        apply_rope_fusion=fused,
        recompute_granularity="full" if config.recompute else None,
        recompute_method="uniform" if config.recompute else None,
        recompute_num_layers=1 if config.recompute else None,
    )


def build_model(architecture: Architecture, config: PolicyConfig, layout: ParallelLayout) -> PolicyModel:
    """This rank's shard on its device; parameters are uninitialised (`weights.load_weights` fills all of them).

    Raises ValueError when the architecture cannot be split as the layout asks."""
    check_split(architecture, layout)
    assert all(hasattr(GPTModel, name) for name in ("_postprocess", "_is_in_embd_group")), (
        "Megatron renamed a hook that PolicyModel overrides"
    )
    fused = layout.device.type == "cuda" and _has_transformer_engine()
    if fused:
        spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=architecture.qk_norm)
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=architecture.qk_norm, normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = FusedCausalAttention
    model = PolicyModel(
        transformer_config(architecture, config, layout, fused=fused),
        spec,
        vocab_size=padded_vocab(architecture, layout),
        max_sequence_length=architecture.max_positions,
        pre_process=layout.first_stage,
        post_process=layout.last_stage,
        share_embeddings_and_output_weights=architecture.tied,
        position_embedding_type="rope",
        rotary_base=architecture.rope_theta,
    )
    model.packs = not fused
    model.rotary_pos_emb = PackedRotary(architecture.head_dim, rotary_percent=1.0, use_cpu_initialization=True)
    model.rotary_pos_emb.inv_freq = inverse_frequencies(architecture).to(layout.device)
    return model.to(device=layout.device, dtype=compute_dtype(config, layout.device))  # type: ignore[no-any-return]


def check_split(architecture: Architecture, layout: ParallelLayout) -> None:
    """ValueError unless heads and widths divide by TP and layers by PP."""
    for what, size in (
        ("attention heads", architecture.num_heads),
        ("key-value heads", architecture.num_kv_heads),
        ("feed-forward width", architecture.ffn_size),
    ):
        if size % layout.tp:
            raise ValueError(f"policy.tensor_parallel={layout.tp} does not divide the model's {what} ({size})")
    if architecture.num_layers % layout.pp:
        raise ValueError(
            f"policy.pipeline_parallel={layout.pp} does not divide the model's layers ({architecture.num_layers})"
        )


def _has_transformer_engine() -> bool:
    return importlib.util.find_spec("transformer_engine") is not None
