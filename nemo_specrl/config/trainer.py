"""The training loop."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class TrainerConfig:
    """How long, how often, and where it stops."""

    name: str = bounded("local", choices=("local", "nemo_rl"))
    """`local`: this process (and its torchrun ranks) trains; vLLM runs beside it."""
    task: str = bounded("rl", choices=("rl", "warmup"))
    """`rl`, or `warmup`: train the draft head alone, on rollouts of the policy as it is; every epoch goes over the same
    rollouts."""
    epochs: int = bounded(2, at_least=1)
    """Passes over the prompts. Reuse begins in the second."""
    max_steps: int | None = bounded(None, at_least=1)
    """Stop after so many steps; null = after the epochs."""
    val_every: int = bounded(0, at_least=0)
    """Steps between validations on held-out prompts; 0 = never."""
    val_prompts: int = bounded(64, at_least=0)
    """Held-out prompts per validation, taken from the end of the data and never trained on."""
    checkpoint_every: int = bounded(5, at_least=0)
    """Steps between checkpoints; 0 = only at the end."""
    keep_checkpoints: int = bounded(2, at_least=2)
    """Newest complete checkpoints that are kept (at least 2: a bad newest one must not cost the run)."""
    resume: bool = True
    """Continue from the newest complete checkpoint in the output folder; false refuses an occupied folder."""
    accept_changed_data: bool = False
    """Resume though the data's rows, their order or their tokens are not those that the run began with; false refuses,
    and names what has changed."""
