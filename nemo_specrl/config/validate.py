"""What a run's fields must satisfy, alone and together. Runs before anything heavy is loaded; no torch."""

from __future__ import annotations

from collections.abc import Iterator

from nemo_specrl.config import bounds
from nemo_specrl.config.algorithm import ALGORITHMS, AlgorithmConfig
from nemo_specrl.config.rules import RULES
from nemo_specrl.config.run import RunConfig


def log_lenience(run: RunConfig) -> float:
    """The natural log of ell that the run uses."""
    given = run.reuse.log_lenience
    return ALGORITHMS[run.algorithm.name].log_lenience if given is None else given


def lossy_stamp(run: RunConfig) -> str:
    """What about this run changes the sampled law on purpose; empty = nothing. Recorded with the run."""
    parts = []
    if run.reuse.rule in RULES and not RULES[run.reuse.rule].exact:
        parts.append(f"reuse={run.reuse.rule}")
    if run.drafter.method != "off" and run.drafter.allow_lossy:
        parts.append(f"drafter verifier={run.drafter.rejection_sample_method}")
    if not run.gate.enabled:
        parts.append("gate off")
    return ", ".join(parts)


def validate(run: RunConfig) -> None:
    """ValueError that names every key at fault and the remedy."""
    faults = list(_faults(run))
    if faults:
        raise ValueError("\n".join(faults))


def _faults(run: RunConfig) -> Iterator[str]:
    yield from bounds.faults(run)
    if run.sampling.max_new_tokens >= run.model.max_length:
        yield (
            f"sampling.max_new_tokens={run.sampling.max_new_tokens} leaves no room for a prompt in "
            f"model.max_length={run.model.max_length}: lower the one or raise the other"
        )
    yield from _reuse_faults(run)
    yield from _loop_faults(run)


def _reuse_faults(run: RunConfig) -> Iterator[str]:
    reuse = run.reuse
    facts = RULES.get(reuse.rule)
    if reuse.log_lenience is not None and not (facts and facts.takes_lenience):
        yield f"reuse.log_lenience is for reuse.rule=lenient only, not {reuse.rule}: drop it, or choose reuse=lenient"
    if reuse.correction != "none":
        yield from _correction_faults(run)
    if reuse.verifier == "engine":
        if not (facts and facts.drawn_only):
            yield (
                f"reuse.verifier=engine returns the drawn tokens' log-probs only, and reuse.rule={reuse.rule} needs "
                "the whole law: use reuse.verifier=policy"
            )
        if reuse.correction != "none":
            yield f"reuse.correction={reuse.correction} needs the law's top candidates: use reuse.verifier=policy"
        if run.sampling.temperature != 1 or run.sampling.top_p != 1 or run.sampling.top_k:
            yield (
                "reuse.verifier=engine: the engine's prompt log-probs are those of temperature 1 without truncation: "
                "use reuse.verifier=policy, or sampling.temperature=1 sampling.top_p=1 sampling.top_k=0"
            )
    if reuse.max_age < reuse.delay:
        yield f"reuse.delay={reuse.delay} epochs needs reuse.max_age of at least that (it is {reuse.max_age})"


def _correction_faults(run: RunConfig) -> Iterator[str]:
    """Whose law is not known, and what no weight can mend."""
    reuse, facts = run.reuse, RULES.get(run.reuse.rule)
    if reuse.correction == "behaviour":
        yield (
            "reuse.correction=behaviour is called token now, which is what it does: each token's own ratio, and some "
            "of the bias stays. reuse.correction=sequence leaves none"
        )
    if not (facts and facts.takes_lenience):
        yield (
            f"reuse.correction={reuse.correction} corrects lenient reuse; reuse.rule={reuse.rule} needs none, or has "
            "no known law: drop it"
        )
    if run.sampling.top_p != 1 or run.sampling.top_k:
        yield (
            f"reuse.correction={reuse.correction} with sampling.top_p={run.sampling.top_p:g} "
            f"sampling.top_k={run.sampling.top_k}: a token that has come into the truncated law since the draft was "
            "drawn can have no chance at all under lenient reuse, and no weight mends what is never sampled: use "
            "sampling.top_p=1 sampling.top_k=0, or an exact rule (reuse=exact), or reuse.correction=none and its bias"
        )


def _objective_faults(algorithm: AlgorithmConfig) -> Iterator[str]:
    """Settings of the objective that do not go together."""
    if algorithm.group_size < 2 and algorithm.baseline != "batch":
        yield (
            f"algorithm.group_size={algorithm.group_size}: a rollout alone has no group to be compared with; use 2 or "
            "more, or algorithm.baseline=batch"
        )
    if algorithm.baseline == "batch" and algorithm.updates_per_step > 1:
        yield (
            "algorithm.baseline=batch compares with the whole step, and each of "
            f"algorithm.updates_per_step={algorithm.updates_per_step} mini-batches sees its own part: use 1"
        )
    if algorithm.ratio == "sequence" and (algorithm.loss_level != "sequence" or algorithm.surrogate != "ppo"):
        yield (
            "algorithm.ratio=sequence clips whole rollouts: use algorithm.loss_level=sequence and "
            "algorithm.surrogate=ppo"
        )
    if algorithm.dual_clip is not None and algorithm.surrogate != "ppo":
        yield f"algorithm.dual_clip={algorithm.dual_clip} bounds PPO's surrogate: use algorithm.surrogate=ppo"


def _loop_faults(run: RunConfig) -> Iterator[str]:
    algorithm, trainer = run.algorithm, run.trainer
    if trainer.task == "warmup" and run.reuse.rule != "off":
        yield f"trainer.task=warmup draws every rollout afresh, once: reuse.rule={run.reuse.rule} must be off"
    if algorithm.updates_per_step > algorithm.prompts_per_step:
        yield (
            f"algorithm.updates_per_step={algorithm.updates_per_step}: a mini-batch is made of whole groups, and there "
            f"are only algorithm.prompts_per_step={algorithm.prompts_per_step} of them"
        )
    yield from _objective_faults(run.algorithm)
    if not run.bench.slots:
        yield "bench.slots=[]: give at least one number of engine slots, e.g. [1,8,32]"
    for key, text in (("name", run.name), ("output_dir", run.output_dir)):
        if not text.strip():
            yield f"{key} is empty: give one"
    if not run.data.source:
        yield "data.source is empty: give a file, or a datasets name"
    if "{prompt}" not in run.data.prompt_template:
        yield f"data.prompt_template={run.data.prompt_template!r}: must contain {{prompt}}"
    missing = {"prompt", "answer"} - set(run.data.columns)
    if run.data.source != "arithmetic" and missing:
        yield f"data.columns lacks {', '.join(sorted(missing))}: map our field to the source's column"
