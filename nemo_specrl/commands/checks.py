"""Everything that can be known before anything heavy is loaded: one function, which every verb that runs calls."""

from __future__ import annotations

from nemo_specrl.config.run import RunConfig


def check_run(run: RunConfig) -> None:
    """ValueError, with the remedies, for what this run cannot do on this machine."""
    import torch

    from nemo_specrl.drafting import make_drafter
    from nemo_specrl.rollout.vllm.limits import check

    if run.trainer.name != "local":
        raise ValueError(f"trainer={run.trainer.name} runs NeMo RL's own driver in a Slurm job: use nemo-specrl submit")
    drafter = make_drafter(run.drafter)
    if faults := list(drafter.faults(run)):
        raise ValueError("\n".join(faults))
    check(run.engine, run.sampling, drafter, cpu=not torch.cuda.is_available())
