"""The learning rate of every update, by NeMo's schedules."""

from __future__ import annotations

import torch

from nemo_specrl.config.policy import PolicyConfig


class LearningRate:
    """A function of the number of updates so far: there is no state to save.

    NeMo's schedules drive a torch optimizer, so they drive one with a single dummy parameter. NeMo is imported only
    where it is needed (10 s and more)."""

    def __init__(self, config: PolicyConfig, total_updates: int | None) -> None:
        """Raises ValueError for an unknown schedule, or a decaying one of unknown length."""
        kinds = {"constant": "WarmupPolicy", "cosine": "CosineAnnealing", "linear": "PolynomialDecayAnnealing"}
        kind = config.lr_schedule
        if kind not in kinds:
            raise ValueError(f"policy.lr_schedule={kind!r} is unknown; known are {', '.join(kinds)}")
        self.constant = config.lr if kind == "constant" and config.warmup_steps == 0 else None
        if self.constant is not None:
            return
        if kind != "constant":
            if total_updates is None:
                raise ValueError(f"policy.lr_schedule={kind} decays to the end of the run: set the number of steps")
            if total_updates <= config.warmup_steps:
                raise ValueError(
                    f"policy.warmup_steps={config.warmup_steps} leaves nothing of {total_updates} updates to "
                    f"decay over: shorten the warm-up or use lr_schedule=constant"
                )
            if config.min_lr > config.lr:
                raise ValueError(f"policy.min_lr={config.min_lr} is above policy.lr={config.lr}")
        from nemo.core.optim import lr_scheduler

        self._optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.lr)
        self._scheduler = getattr(lr_scheduler, kinds[kind])(
            self._optimizer,
            warmup_steps=config.warmup_steps,
            max_steps=total_updates if kind != "constant" else None,
            min_lr=config.min_lr if kind != "constant" else 0.0,
        )

    def __call__(self, updates: int) -> float:
        """The rate of the update that follows `updates` earlier ones. Never asked backwards."""
        if self.constant is not None:
            return self.constant
        assert updates >= self._scheduler.last_epoch, "a schedule does not run backwards"
        while self._scheduler.last_epoch < updates:
            self._optimizer.step()
            self._scheduler.step()
        return float(self._optimizer.param_groups[0]["lr"])
