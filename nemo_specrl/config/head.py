"""The MTP draft head: where it comes from, how it learns, and when its acceptance is an alarm."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class HeadConfig:
    """A multi-token-prediction head that learns from the policy (drafter.method=mtp; elsewhere it is not used)."""

    source: str = "scratch"
    """`scratch` (the policy's last layer, with a projection fitted to the first rollouts), `native` (the model folder's
    own model.mtp_layers.*), or a folder with a head's weights, such as a warm-up writes."""
    lr: float = bounded(1e-4, at_least=0)
    """AdamW learning rate of the head, its own."""
    clip_grad: float = bounded(1.0, at_least=0)
    """Bound of the head's gradient norm, its own; 0 = none."""
    every: int = bounded(1, at_least=0)
    """Steps between updates of the head; 0 = frozen."""
    depth: int = bounded(1, at_least=1)
    """How many times the head is applied to its own output in training, k. Serving drafts num_draft_tokens deep."""
    depth_decay: float = bounded(0.8, at_least=0)
    """Weight of each depth's loss relative to the one before."""
    loss: str = bounded("kl", choices=("kl", "acceptance"))
    """`kl` = KL(policy || head), `acceptance` = -log of the chance that a sampled draft is accepted (LK Losses, arXiv
    2602.23881). With `topk` the lump counts as one token, which flatters the chance."""
    topk: int = bounded(0, at_least=0)
    """Distil the policy's k likeliest tokens and the rest as one lump; 0 = the full vocabulary, in chunks."""
    vocabulary: int = bounded(0, at_least=0)
    """The head drafts only the so many tokens that are most frequent in the rollouts so far: a draft then costs a small
    part of the LM head. 0 = all tokens. Training and agreement know nothing of it."""
    acceptance_floor: float = bounded(0.0, at_least=0)
    """Warn when a step's acceptance at the first draft position falls below this; 0 = never."""
    floor_patience: int = bounded(5, at_least=0)
    """Stop with an error after so many steps in a row below the floor; 0 = warn only."""
