"""The training loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainerConfig:
    """How long, how often, and where it stops."""

    name: str = "local"
    """`local`: this process (and its torchrun ranks) trains; vLLM runs beside it."""
    task: str = "rl"
    """`rl`, or `warmup`: train the draft head alone, on rollouts of the policy as it is; every epoch goes over the same
    rollouts."""
    epochs: int = 2
    """Passes over the prompts. Reuse begins in the second."""
    max_steps: int | None = None
    """Stop after so many steps; null = after the epochs."""
    val_every: int = 0
    """Steps between validations on held-out prompts; 0 = never."""
    val_prompts: int = 64
    """Held-out prompts per validation, taken from the end of the data and never trained on."""
    checkpoint_every: int = 5
    """Steps between checkpoints; 0 = only at the end."""
    keep_checkpoints: int = 2
    """Newest complete checkpoints that are kept (at least 2: a bad newest one must not cost the run)."""
    resume: bool = True
    """Continue from the newest complete checkpoint in the output folder; false refuses an occupied folder."""
