"""`nemo-specrl eval`: fresh rollouts of the configured data under the newest checkpoint, and their mean reward."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_specrl.config.arguments import compose_arguments
from nemo_specrl.config.compose import to_run_config
from nemo_specrl.training import checkpoint
from nemo_specrl.training.checks import check_run
from nemo_specrl.training.evaluate import Evaluation, evaluate
from nemo_specrl.training.folder import output_folder
from nemo_specrl.training.loop import restore
from nemo_specrl.training.parts import build
from nemo_specrl.training.ranks import is_main
from nemo_specrl.types import Prompt

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal law."""


def eval_command(args: list[str]) -> int:
    """`nemo-specrl eval`: the newest checkpoint of `output_dir` on the configured data.

    The report is printed and kept as `eval-<data>.json` in the run's folder."""
    _, tree = compose_arguments(args)
    run = to_run_config(tree)
    folder = output_folder(run)
    if not run.evaluation.untrained and not checkpoint.complete(folder / "checkpoints"):
        raise ValueError(
            f"output_dir={folder} has no checkpoint to evaluate: give a run's folder, or evaluation.untrained=true for "
            "the model as it is"
        )
    material = check_run(run)
    folder.mkdir(parents=True, exist_ok=True)
    with build(run, material, folder, resumed=False, track=False) as parts:
        step = restore(parts, folder / "checkpoints")
        parts.refit()
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
