"""Rotary frequencies."""

from __future__ import annotations

import math

import torch

from nemo_specrl.models.architecture import Architecture


def inverse_frequencies(architecture: Architecture) -> torch.Tensor:
    """[head_dim / 2] fp32 rotary frequencies, as transformers computes them (`linear` and `llama3` included)."""
    dim = architecture.head_dim
    frequencies = 1.0 / (architecture.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    scaling = dict(architecture.rope_scaling)
    if not scaling:
        return frequencies
    factor = scaling["factor"]
    if "low_freq_factor" not in scaling:
        return frequencies / factor
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies
