"""Evaluation: fresh rollouts of given prompts under the sampling law, and their mean reward.

`validate_policy` during training, on held-out prompts; `nemo-specrl eval` afterwards, on any data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_specrl.rollout.engine import GenerationRequest
from nemo_specrl.speculation.randomness import engine_seed
from nemo_specrl.training.parts import Parts, build
from nemo_specrl.training.refit import refit
from nemo_specrl.types import Prompt

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal law."""


@dataclass(frozen=True)
class Evaluation:
    """Rewards of one sample or more per prompt."""

    rewards: np.ndarray
    """[prompts, samples], NaN where the verifier failed."""
    lengths: np.ndarray
    """[prompts, samples] response tokens."""

    def mean(self) -> float:
        """Mean reward over prompts that have at least one valid sample."""
        return float(np.nanmean(self.rewards)) if np.isfinite(self.rewards).any() else float("nan")

    def standard_error(self) -> float:
        """Of the mean, over prompts (the samples of a prompt are not independent)."""
        valid = self.rewards[np.isfinite(self.rewards).any(axis=1)]
        per_prompt = np.nanmean(valid, axis=1)
        return float(per_prompt.std(ddof=1) / len(per_prompt) ** 0.5) if len(per_prompt) > 1 else float("nan")


def evaluate(parts: Parts, prompts: Sequence[Prompt], *, step: int, samples: int = 1) -> Evaluation:
    """Draw and score; rank 0 only. Training uses slots >= 0, so slots -1, -2, ... have random numbers of their own."""
    assert parts.engine is not None
    assert parts.reward is not None
    run = parts.run
    empty = np.zeros(0, np.int32)
    chosen = [(prompt, -1 - i) for prompt in prompts for i in range(samples)]
    requests = [
        GenerationRequest(p.token_ids, empty, run.sampling.max_new_tokens, engine_seed(run.seed, step, p.key, slot))
        for p, slot in chosen
    ]
    completions = parts.engine.generate(requests, on_progress=parts.progress.advance_to)
    results = parts.reward.score(
        [(p, parts.decode(c.token_ids)) for (p, _), c in zip(chosen, completions, strict=True)]
    )
    shape = (len(prompts), samples)
    rewards = np.array([r.value if r.valid else np.nan for r in results]).reshape(shape)
    return Evaluation(rewards, np.array([len(c.token_ids) for c in completions]).reshape(shape))


def validate_policy(parts: Parts, step: int) -> dict[str, float]:
    """`val/reward_mean`, its standard error and the mean length over the held-out prompts. Collective."""
    refit(parts)
    if parts.engine is None:
        return {}
    parts.progress.phase("validation", len(parts.validation))
    found = evaluate(parts, parts.validation, step=step)
    invalid = int(np.isnan(found.rewards).sum())
    metrics = {"val/n": found.rewards.size - invalid, "val/invalid": invalid, "val/length_mean": found.lengths.mean()}
    metrics |= {"val/reward_mean": found.mean(), "val/reward_se": found.standard_error()}
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}


def eval_command(args: list[str]) -> int:
    """`nemo-specrl eval`: the newest checkpoint of `output_dir` (or the model itself) on the configured data.

    The report is printed and kept as `eval-<data>.json` in the run's folder."""
    from nemo_specrl.config.compose import to_run_config
    from nemo_specrl.training.command import check_engine, compose_arguments, output_folder
    from nemo_specrl.training.loop import restore
    from nemo_specrl.training.ranks import is_main

    _, tree = compose_arguments(args)
    run = to_run_config(tree)
    check_engine(run)
    folder = output_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    with build(run, folder, resumed=False, track=False) as parts:
        step = restore(parts, folder / "checkpoints")
        refit(parts)
        if not is_main():
            return 0
        prompts = [*parts.prompts, *parts.validation]
        parts.progress.phase("evaluation", len(prompts) * run.evaluation.samples)
        found = evaluate(parts, prompts, step=step, samples=run.evaluation.samples)
    half = Z95 * found.standard_error()
    name = Path(run.data.source).stem
    report = {
        "data": run.data.source,
        "model": run.model.path,
        "step": step,
        "prompts": len(prompts),
        "samples": run.evaluation.samples,
        "reward_mean": _known(found.mean()),
        "reward_interval_95": [_known(found.mean() - half), _known(found.mean() + half)],
        "invalid": int(np.isnan(found.rewards).sum()),
        "length_mean": float(found.lengths.mean()),
        "by_source": _by_source(prompts, found),
    }
    path = folder / f"eval-{name}.json"
    path.write_text(json.dumps(report, indent=1, allow_nan=False))
    parts.progress.say(
        f"{name}: mean reward {found.mean():.3f} ± {half:.3f} (95 %) over {len(prompts)} prompts x "
        f"{run.evaluation.samples}, step {step}\nreport {path}"
    )
    return 0


def _by_source(prompts: Sequence[Prompt], found: Evaluation) -> dict[str, float | None]:
    sources = np.array([p.source for p in prompts])
    parts = {s: Evaluation(found.rewards[sources == s], found.lengths[sources == s]) for s in np.unique(sources)}
    return {str(s): _known(part.mean()) for s, part in parts.items()}


def _known(value: float) -> float | None:
    """JSON has no NaN: an interval over one prompt, or a mean over rewards that all failed, is null."""
    return value if np.isfinite(value) else None
