"""How far from the policy are lenient rollouts, and does a draft from the policy's own training set matter? (ours)

    python benchmarks/bias.py [--json FILE] [--config-name=bench_smollm2] [override ...]

A training with exact reuse gives the policies p_0, p_1, ... (one a step) and rollouts A of p_0. At the positions of A,
reached by the same prefixes, everything below is a closed form of whole laws over the vocabulary; nothing is sampled
but the prefixes.

Bias of `lenient` at a position whose draft is alive, TV(law, p_e), after e epochs of reuse, for two ways to keep books:
    kept     q is the law m that the token really has:  m' = min(m, ell p) + (1 - sum min(m, ell p)) p
    relogged q is the newest policy's log-prob, as in SPEC-RL's code, while the token has m:
             a = min(1, ell p / p_before),  m' = m a + (1 - sum m a) p
Per sequence, for the first epoch of reuse: TV between the joint laws of (tokens, where the draft ended) is the mean of
(1 - prod p/mu)+ over lenient rollouts; the position where the draft ends and the token that replaces it are averaged in
closed form, for each draft in A. It bounds the TV between the laws of the tokens alone.

Adaptivity: p_1 was trained on A, and B are as many rollouts of p_0 that it never saw. With q = p_0, min(1, p_1/q) of a
drafted token has mean 1 - TV(p_1, q) if the draft does not depend on p_1. What is reported is the difference, with a
95 % interval over prompts: 0 for B (a check), not necessarily for A.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_specrl.config.compose import compose
from nemo_specrl.contracts.rows import Row
from nemo_specrl.reporting.stats import estimate
from nemo_specrl.training.checks import check_run
from nemo_specrl.training.parts import Parts, build
from nemo_specrl.training.plan import plan_steps
from nemo_specrl.training.step import run_step
from nemo_specrl.types import Rollout

Probs = NDArray[np.float32]
LENIENCES = {"1": 1.0, "e^0.15": math.exp(0.15), "e^0.5": math.exp(0.5)}


def laws(parts: Parts, rollouts: Sequence[Rollout]) -> list[Probs]:
    """[T, V] the present policy's law at each position, of each rollout."""

    def whole(row: int, start: int, logprobs: torch.Tensor) -> Probs:
        found: Probs = logprobs.float().exp().cpu().numpy()
        return found

    rows = [Row(r.prompt_ids, r.token_ids) for r in rollouts]
    return [np.concatenate(chunks) for chunks in parts.policy.reduce(rows, whole)]


def tv(a: Probs, b: Probs) -> NDArray[np.float64]:
    """[T] total variation of each row's law."""
    return np.asarray(0.5 * np.abs(a - b).sum(1, dtype=np.float64))


def lenient(m: Probs, told: Probs, p: Probs, ell: float) -> tuple[Probs, Probs]:
    """([T, V] the law after one lenient verification of tokens of law m against `told`, [T, V] the acceptance)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        accept = np.where(told > 0, np.minimum(1.0, ell * p / told), 0.0).astype(np.float32)
    kept = m * accept
    return kept + (1.0 - kept.sum(1, keepdims=True, dtype=np.float64)).astype(np.float32).clip(0.0) * p, accept


def sequence_tv(rollout: Rollout, q: Probs, p: Probs, ell: float) -> float:
    """E (1 - prod p/mu)+ over the draft's end and the replacement, given the draft."""
    mu, accept = lenient(q, q, p, ell)
    alive, weight, total = 1.0, 1.0, 0.0
    for i, token in enumerate(rollout.token_ids.tolist()):
        stands = float(accept[i, token])
        with np.errstate(divide="ignore", invalid="ignore"):
            short = np.where(p[i] > 0, np.maximum(0.0, 1.0 - weight * p[i] / mu[i]), 0.0)
        total += alive * (1.0 - stands) * float((p[i] * short).sum(dtype=np.float64))
        alive *= stands
        weight *= float(p[i, token] / mu[i, token]) if mu[i, token] > 0 else 1.0
    return total + alive * max(0.0, 1.0 - weight)


class Chains:
    """The laws of A's positions through the epochs, for every lenience and both ways to keep books."""

    def __init__(self, p: list[Probs]) -> None:
        self.before = p
        self.laws = {(name, books): list(p) for name in LENIENCES for books in ("kept", "relogged")}

    def step(self, p: list[Probs]) -> dict[str, float]:
        """The policy has moved to p: mean TV(law, p) over all positions."""
        out = {"policy moved": float(np.concatenate([tv(a, b) for a, b in zip(self.before, p, strict=True)]).mean())}
        for (name, books), chain in self.laws.items():
            told = chain if books == "kept" else self.before
            chain[:] = [
                lenient(m, q, law, LENIENCES[name])[0] for m, q, law in zip(chain, told, p, strict=True)
            ]  # fmt: skip
            out[f"{books} {name}"] = float(np.concatenate([tv(m, law) for m, law in zip(chain, p, strict=True)]).mean())
        self.before = p
        return out


def adaptivity(rollouts: Sequence[Rollout], q: list[Probs], p: list[Probs]) -> dict[str, Any]:
    """min(1, p(y)/q(y)) minus its mean under an independent draft, by prompt; and the same of log p(y)/q(y)."""
    gaps: dict[str, list[float]] = {}
    logs: dict[str, list[float]] = {}
    for rollout, q_row, p_row in zip(rollouts, q, p, strict=True):
        at = np.arange(rollout.length), rollout.token_ids
        ratio = p_row[at].astype(np.float64) / q_row[at]
        gaps.setdefault(rollout.prompt_key, []).extend(np.minimum(1.0, ratio) - (1.0 - tv(p_row, q_row)))
        tiny = np.finfo(np.float32).tiny
        divergence = (q_row * np.log((q_row + tiny) / (p_row + tiny))).sum(1, dtype=np.float64)
        logs.setdefault(rollout.prompt_key, []).extend(np.log(ratio) + divergence)
    return {
        name: dataclasses.asdict(found)
        for name, groups in (("acceptance", gaps), ("log ratio", logs))
        if (found := estimate([float(np.mean(values)) for values in groups.values()])) is not None
    }


def study(parts: Parts) -> dict[str, Any]:
    """Train to the end of the plan and look at A after each epoch's first step."""
    plans = plan_steps(parts.run, len(parts.prompts))
    first = plans[0]
    parts.refit()
    prompts = [parts.prompts[i] for i in first.prompts]
    draw = parts.generator.rollouts
    a = draw(prompts, step=first.step, epoch=1, version=0).rollouts  # the step below draws the very same again
    b = draw(prompts, step=10**6, epoch=1, version=0).rollouts
    q, q_held_out = laws(parts, a), laws(parts, b)
    chains, epochs, sequences, drafts = Chains(q), [], {}, {}
    for plan in plans:
        result = run_step(parts, plan)
        if plan.step == first.step:
            same = all(
                np.array_equal(x.token_ids, y.token_ids)
                for x, y in zip(a, [sample.rollout for sample in result.samples], strict=True)
            )
            assert same, "A is what the policy was trained on: set engine.dtype=fp32"
        last = plan.step == len(plans) or plans[plan.step].epoch > plan.epoch
        if not last:
            continue
        p = laws(parts, a)
        if plan.epoch == 1:
            for name, ell in LENIENCES.items():
                found = [sequence_tv(r, x, y, ell) for r, x, y in zip(a, q, p, strict=True)]
                sequences[name] = dataclasses.asdict(estimate(found))  # type: ignore[arg-type]
            drafts = {"training (A)": adaptivity(a, q, p), "held out (B)": adaptivity(b, q_held_out, laws(parts, b))}
            print(json.dumps({"per sequence": sequences, "adaptivity": drafts}), flush=True)
        epochs.append({"epoch": plan.epoch + 1, **chains.step(p)})
        print(json.dumps(epochs[-1]), flush=True)
    return {
        "positions": sum(r.length for r in a),
        "rollouts": len(a),
        "per position": epochs,
        "per sequence": sequences,
        "adaptivity": drafts,
    }


def report(found: dict[str, Any]) -> str:
    """Markdown tables."""
    columns = list(found["per position"][0])
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in found["per position"]:
        lines.append("| " + " | ".join(f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    lines += ["", "| lenience | TV per sequence |", "|---|---|"]
    lines += [f"| {n} | {v['mean']:.3f} [{v['low']:.3f}, {v['high']:.3f}] |" for n, v in found["per sequence"].items()]
    lines += ["", "| drafts | figure | excess over an independent draft |", "|---|---|---|"]
    for drafts, figures in found["adaptivity"].items():
        for name, v in figures.items():
            lines.append(f"| {drafts} | {name} | {v['mean']:+.5f} [{v['low']:+.5f}, {v['high']:+.5f}] |")
    return "\n".join(lines)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config-name", default="bench_smollm2")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    run = compose(["reuse=exact", "tracking=spool", *args.overrides], config_name=args.config_name)
    with (
        tempfile.TemporaryDirectory() as folder,
        build(run, check_run(run), Path(folder), resumed=False, track=False) as parts,
    ):
        found = study(parts)
    print(f"{found['rollouts']} rollouts, {found['positions']} positions\n\n{report(found)}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
