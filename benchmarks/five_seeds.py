"""Do the exact arms learn what vanilla learns? Seeds x arms of a short training on the tiny model (issue 3: five x 30).

    python benchmarks/five_seeds.py OUT.jsonl [--seeds 5] [--steps 30] [--arms vanilla,exact,...] [override ...]

The reward is the share of lower-case letters, which a random model can learn within 30 steps; at this learning rate
the policy moves far in an epoch of two steps, so that lenient reuse samples visibly stale rollouts. OUT.jsonl gets a
line per training; what it already holds is not trained again. The table: mean reward in each third of the training,
the difference from vanilla with the 95 % interval over pairs of equal seeds, and at how many steps the arm's mean lies
inside vanilla's 95 % interval over seeds (19 of 20 would be expected of the mean itself, fewer of another arm's mean).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.config.compose import compose
from nemo_specrl.reporting.stats import contrast, estimate
from nemo_specrl.training.checks import check_run
from nemo_specrl.training.parts import build
from nemo_specrl.training.plan import plan_steps
from nemo_specrl.training.step import run_step

ARMS = ["vanilla", "exact", "block", "exact_history", "spec_rl", "spec_rl_corrected"]
SETTINGS = [
    "model=tiny", "tracking=spool", "reward.name=tests.training.letters:LowerCaseShare", "data.size=8",
    "data.digits=[1,1]", "algorithm.group_size=8", "algorithm.prompts_per_step=4", "sampling.max_new_tokens=12",
    "reuse.topk=128", "policy.dtype=fp32", "policy.lr=3e-4", "engine.dtype=fp32", "engine.kv_cache_gib=0.1",
    "engine.max_num_seqs=32", "gate.canary_every=0", "trainer.epochs=1000",
]  # fmt: skip
KEPT = ("reward/mean", "reuse/kept_fraction", "reuse/acceptance", "reuse/tv", "rollout/entropy", "rollout/new_tokens")
Curves = dict[int, NDArray[np.float64]]


def train(arm: str, seed: int, steps: int, overrides: list[str]) -> dict[str, list[float | None]]:
    """Metric -> its value at each step, of one training in this process."""
    run = compose([f"experiment={arm}", *SETTINGS, f"seed={seed}", f"trainer.max_steps={steps}", *overrides])
    with (
        tempfile.TemporaryDirectory() as folder,
        build(run, check_run(run), Path(folder), resumed=False, track=False) as parts,
    ):
        parts.refit()
        found = [run_step(parts, plan).metrics for plan in plan_steps(run, len(parts.prompts))]
    return {key: [step.get(key) for step in found] for key in KEPT}


def table(curves: dict[str, Curves]) -> str:
    """Markdown; `curves[arm][seed]` [steps] mean rewards."""
    base = curves["vanilla"]
    steps = len(next(iter(base.values())))
    thirds = np.array_split(np.arange(steps), 3)
    head = [f"steps {part[0] + 1}-{part[-1] + 1}" for part in thirds]
    lines = [f"| arm | {' | '.join(head)} | inside vanilla's interval |", "|---" * (len(head) + 2) + "|"]
    interval = [estimate([run[i] for run in base.values()]) for i in range(steps)]
    for arm, runs in curves.items():
        cells = []
        for part in thirds:
            own, theirs = ({seed: float(run[part].mean()) for seed, run in side.items()} for side in (runs, base))
            text = f"{np.mean(list(own.values())):.3f}"
            found = contrast(own, theirs, ratio=False)
            if arm != "vanilla" and found is not None and found.low is not None:
                text += f" ({found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}])"
            cells.append(text)
        mean = np.mean(list(runs.values()), axis=0)
        inside = sum(
            e is not None and e.low is not None and e.high is not None and e.low <= m <= e.high
            for e, m in zip(interval, mean, strict=True)
        )
        lines.append(f"| {arm} | {' | '.join(cells)} | {inside} of {steps} steps |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    arms = args.arms.split(",")
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {(d["arm"], d["seed"]) for d in done}
    for seed in range(args.seeds):
        for arm in arms:
            if (arm, seed) not in known:
                done.append({"arm": arm, "seed": seed, "metrics": train(arm, seed, args.steps, args.overrides)})
                with open(args.out, "a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    curves: dict[str, Curves] = {arm: {} for arm in arms}
    for d in done:
        if d["arm"] in curves:
            curves[d["arm"]][d["seed"]] = np.array(d["metrics"]["reward/mean"], float)
    print(table(curves))


if __name__ == "__main__":
    main()
