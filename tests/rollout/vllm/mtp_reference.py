"""An MTP head in plain torch, written from MiMo's definition and from nothing of ours: what engine and trainer owe.

At position t: proj([norm(hidden_t), norm(embed(x_{t+1}))]) -> one pre-norm decoder layer with rotary attention over
the head's own keys -> norm -> the trunk's LM head -> law of x_{t+2}. Deeper: the output takes hidden's place, one
position on, with the drafted token. hidden_t is the trunk's last hidden state before its final norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PREFIX = "model.mtp_layers.0."


def random_head(model: Any, *, seed: int = 0, scale: float = 0.2) -> dict[str, Tensor]:
    """A random fp32 head for a transformers causal LM: the tensors of its decoder layer 0, and the head's own."""
    generator = torch.Generator().manual_seed(seed)
    width = model.config.hidden_size
    names = {
        n.removeprefix("model.layers.0."): p for n, p in model.named_parameters() if n.startswith("model.layers.0.")
    }
    shapes = {name: tuple(parameter.shape) for name, parameter in names.items()} | {
        "input_proj.weight": (width, 2 * width)
    }
    shapes |= {f"{norm}.weight": (width,) for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm")}
    head = {}
    for name, shape in sorted(shapes.items()):
        noise = scale * torch.randn(shape, generator=generator)
        head[PREFIX + name] = 1 + noise if "norm" in name else noise
    return head


def trunk_hidden(model: Any, token_ids: list[int]) -> Tensor:
    """[T, hidden] the trunk's last hidden states before its final norm."""
    caught: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    with torch.no_grad():
        model(torch.tensor([token_ids]))
    hook.remove()
    return caught[0][0]


class MtpReference:
    """The head on one sequence, with the keys and values of all positions so far."""

    def __init__(self, head: dict[str, Tensor], model: Any) -> None:
        self.w = {name.removeprefix(PREFIX): tensor.float() for name, tensor in head.items()}
        self.config = model.config
        self.embed = model.model.embed_tokens.weight.detach().float()
        self.lm_head = model.lm_head.weight.detach().float()
        self.head_dim = getattr(model.config, "head_dim", None) or (
            model.config.hidden_size // model.config.num_attention_heads
        )
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps) * self.w[name + ".weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def rotate(self, x: Tensor, position: int) -> Tensor:
        """[heads, head_dim], halves rotated against each other."""
        theta = self.config.rope_parameters["rope_theta"]
        half = self.head_dim // 2
        angle = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def step(self, hidden: Tensor, token: int, position: int) -> Tensor:
        """[hidden] at `position`, and the token that follows it -> [hidden] of the head."""
        embed = self.embed[token] if position else torch.zeros_like(self.embed[token])
        joined = torch.cat([self.norm(hidden, "hidden_layernorm"), self.norm(embed, "token_layernorm")])
        x = self.linear(joined, "input_proj")
        x = x + self.attend(self.norm(x, "input_layernorm"), position)
        y = self.norm(x, "post_attention_layernorm")
        x = x + self.linear(F.silu(self.linear(y, "mlp.gate_proj")) * self.linear(y, "mlp.up_proj"), "mlp.down_proj")
        return self.norm(x, "final_layernorm")

    def attend(self, x: Tensor, position: int) -> Tensor:
        q, k, v = (self.linear(x, f"self_attn.{part}_proj").view(-1, self.head_dim) for part in "qkv")
        if "self_attn.q_norm.weight" in self.w:
            q, k = self.norm(q, "self_attn.q_norm"), self.norm(k, "self_attn.k_norm")
        self.keys.append(self.rotate(k, position))
        self.values.append(v)
        repeat = len(q) // len(v)
        keys, values = (torch.stack(x).repeat_interleave(repeat, 1) for x in (self.keys, self.values))
        scores = torch.einsum("hd,thd->ht", self.rotate(q, position), keys) / self.head_dim**0.5
        return self.linear(torch.einsum("ht,thd->hd", scores.softmax(-1), values).flatten(), "self_attn.o_proj")

    def draft_logits(self, token_ids: list[int], hidden: Tensor, drafts: list[int]) -> Tensor:
        """[k, V] logits of the k drafts that follow `token_ids` (n tokens; hidden [>= n-1, hidden] of the trunk), where
        depth d+1 reads drafts[d]."""
        self.keys, self.values = [], []
        out = torch.empty(0)
        for position, token in enumerate(token_ids[1:]):
            out = self.step(hidden[position], token, position)
        logits = [self.lm_head @ out]
        for depth, token in enumerate(drafts[:-1]):
            out = self.step(out, token, len(token_ids) - 1 + depth)
            logits.append(self.lm_head @ out)
        return torch.stack(logits)
