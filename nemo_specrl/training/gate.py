"""The lossless gate on the live engine: before training, alone as `nemo-specrl verify`, and as a canary in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_specrl.config.run import RunConfig
from nemo_specrl.policy.base import Row
from nemo_specrl.rollout.engine import Completion, GenerationRequest, SpecCounters
from nemo_specrl.speculation.lossless import Verdict, canary_verdict
from nemo_specrl.speculation.randomness import generator
from nemo_specrl.speculation.transform import Transform, Transformed, transform_verdict
from nemo_specrl.training.parts import Parts
from nemo_specrl.training.ranks import broadcast, is_main
from nemo_specrl.training.refit import refit
from nemo_specrl.types import Prompt, Rollout

CONTEXTS = 8
"""Contexts of the gate: the last tokens of so many prompts, so that they are short and unlike."""
CONTEXT_TOKENS = 16
CANARY_REQUESTS = 8


class GateBreach(RuntimeError):  # noqa: N818 - the gate is breached: that is the event's name
    """The engine does not sample from the policy, or its log-probs are not the policy's."""


def run_gate(parts: Parts, *, step: int) -> list[Verdict]:
    """Sample, transform, test. Raises GateBreach on a failure; logs warnings. Collective.

    With a drafter the contexts are sampled twice: the first pass is what a history drafter learns from, so that the
    second, which is tested, does contain drafts."""
    config = parts.run.gate
    if not config.enabled:
        return []
    tokens = min(config.tokens_per_sample, parts.run.sampling.max_new_tokens)
    contexts = _contexts(parts.prompts)
    repeats = max(1, config.samples // len(contexts))
    rounds = 2 if parts.run.drafter.method != "off" else 1
    drawn: list[Completion] = []
    for turn in range(rounds):
        parts.progress.phase("lossless gate", len(contexts) * repeats)
        drawn = _sample(parts, contexts * repeats, tokens, f"gate/{turn}", step)
        if turn + 1 < rounds:
            parts.observe(_as_rollouts(contexts * repeats, drawn, step))
    verdicts = _judge(parts, contexts * repeats, drawn, step)
    _report(parts, verdicts, step)
    return verdicts


def run_canary(parts: Parts, prompts: Sequence[Prompt], *, step: int) -> dict[str, float]:
    """A few fresh tokens, log-probs of engine and trainer side by side; `gate/*`. Collective."""
    parts.progress.phase("canary")
    chosen = list(prompts)[:CANARY_REQUESTS]
    drawn = _sample(parts, chosen, min(8, parts.run.sampling.max_new_tokens), "canary", step)
    rows = broadcast([Row(p.token_ids, c.token_ids) for p, c in zip(chosen, drawn, strict=False)])
    scores = parts.policy.score(rows)
    verdict: Verdict | None = None
    if is_main():
        engine = np.concatenate([c.logprobs for c in drawn])
        verdict = canary_verdict(engine, np.concatenate([s.logprobs for s in scores]), **_limits(parts))
    verdict = broadcast(verdict)
    assert verdict is not None
    _report(parts, [verdict], step)
    return {f"gate/{name}": value for name, value in verdict.figures.items()}


def check_acceptance(parts: Parts, spec: SpecCounters, *, step: int) -> None:
    """Warn, and after some steps stop, when the draft head's tokens are hardly accepted: a stale or wrong head leaves
    the outputs right, so nothing else would tell. Collective."""
    if parts.run.drafter.method == "mtp":
        _report(parts, [broadcast(parts.floor.verdict(spec))], step)


def _contexts(prompts: Sequence[Prompt]) -> list[Prompt]:
    some = prompts[:: max(1, len(prompts) // CONTEXTS)][:CONTEXTS]
    return [Prompt(p.token_ids[-CONTEXT_TOKENS:], p.answer, p.text) for p in some]


def _sample(parts: Parts, contexts: Sequence[Prompt], tokens: int, address: str, step: int) -> list[Completion]:
    if parts.engine is None:
        return []
    seeds = generator(parts.run.seed, step, address, 0, "engine").integers(0, 2**31 - 1, len(contexts))
    empty = np.zeros(0, np.int32)
    requests = [
        GenerationRequest(p.token_ids, empty, tokens, int(seed)) for p, seed in zip(contexts, seeds, strict=True)
    ]
    try:
        return parts.engine.generate(requests, on_progress=parts.progress.advance_to)
    except RuntimeError as error:
        if "LogprobError" not in str(error):  # the engine's process sends its errors as text
            raise
        raise GateBreach(
            f"step {step}: the engine returned log-probs that cannot be true ({error}). Do not train on its samples: "
            "check that it runs with this package's vLLM plugin (VLLM_PLUGINS), and try drafter=off"
        ) from error


def _judge(parts: Parts, contexts: Sequence[Prompt], drawn: Sequence[Completion], step: int) -> list[Verdict]:
    """The chi-square of the transformed tokens, and the canary on the same tokens."""
    parts.progress.phase("lossless gate: the policy's law")
    rows = broadcast([Row(p.token_ids, c.token_ids) for p, c in zip(contexts, drawn, strict=False)])
    transform = Transform([row.token_ids for row in rows], seed=parts.run.seed, step=step)
    reduced: list[list[Transformed]] = parts.policy.reduce(rows, transform)
    verdicts: list[Verdict] = []
    if is_main():
        chunks = [part for row in reduced for part in row]
        trainer = np.concatenate([part.logprobs for part in chunks])
        engine = np.concatenate([c.logprobs for c in drawn])
        verdicts = [transform_verdict(chunks), canary_verdict(engine, trainer, **_limits(parts))]
    return broadcast(verdicts)


def _limits(parts: Parts) -> dict[str, float]:
    return {"warn": parts.run.gate.logprob_warn, "breach": parts.run.gate.logprob_breach}


def _report(parts: Parts, verdicts: Sequence[Verdict], step: int) -> None:
    """Say what is not in order, record everything, raise where training must not go on."""
    if parts.tracker is not None and len(verdicts) > 1:
        parts.tracker.tags(
            {"gate": ", ".join(v.status for v in verdicts), "gate.verdict": "; ".join(v.text for v in verdicts)}
        )
    for verdict in verdicts:
        if verdict.status == "warn":
            parts.progress.say(f"[yellow]gate, step {step}: {verdict.text}[/]")
    failed = [verdict.text for verdict in verdicts if not verdict.passed]
    if failed:
        raise GateBreach(f"step {step}: " + " ".join(failed))


def _as_rollouts(contexts: Sequence[Prompt], drawn: Sequence[Completion], step: int) -> list[Rollout]:
    return [
        Rollout(
            p.key, i, p.token_ids, c.token_ids, c.logprobs, np.full(len(c.token_ids), step, np.int32), c.finish_reason
        )
        for i, (p, c) in enumerate(zip(contexts, drawn, strict=False))
    ]


def verify_command(args: list[str]) -> int:
    """`nemo-specrl verify`: the gate alone, on the configured engine, drafter and law. Exit code 1 on a breach."""
    import tempfile

    from nemo_specrl.config.compose import to_run_config
    from nemo_specrl.training.command import check_engine, compose_arguments

    _, tree = compose_arguments(args)
    run: RunConfig = to_run_config(tree)
    check_engine(run)
    from nemo_specrl.training.parts import build

    with tempfile.TemporaryDirectory() as folder, build(run, Path(folder), resumed=False, track=False) as parts:
        refit(parts)
        try:
            verdicts = run_gate(parts, step=0)
        except GateBreach as breach:
            parts.progress.say(f"[red]FAIL[/] {breach}")
            return 1
        for verdict in verdicts:
            parts.progress.say(f"[green]{verdict.status}[/] {verdict.text}")
    return 0
