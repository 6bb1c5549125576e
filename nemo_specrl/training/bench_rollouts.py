"""`bench.kind=rollouts`: one step's rollouts, drawn by every arm from the same weights and the same cache.

A training is recorded up to the epoch that counts (exact reuse: its rollouts have the policy's law, and come with the
candidates that every rule needs). Its checkpoint is then what each arm starts from, at each number of engine slots, in
turn and repeatedly: what differs is reuse and drafting alone, so a few seconds of each tell what whole trainings would.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from rich.console import Console

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.run import RunConfig
from nemo_specrl.contracts.engine import Engine, GenerationRequest
from nemo_specrl.contracts.policy import Policy
from nemo_specrl.data import load_prompts
from nemo_specrl.drafting import make_drafter
from nemo_specrl.models import ModelFolder, load_tokenizer, resolve_model
from nemo_specrl.policy.mtp.weights import read_head
from nemo_specrl.reporting.rollout_bench import Measurement
from nemo_specrl.rollout.vllm.versions import installed
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.training import checkpoint, factories
from nemo_specrl.training.folder import read_run
from nemo_specrl.training.plan import StepPlan, plan_steps
from nemo_specrl.types import Prompt, TopK

if TYPE_CHECKING:
    import torch

Head: TypeAlias = "Sequence[tuple[str, torch.Tensor]]"
"""A draft head's tensors by name, as a refit takes them."""
RECORDING = "recording"
"""Folder of the recorded training, inside the bench's."""
RESULTS = "measurements.jsonl"
_SHARED = ("model", "data", "algorithm", "sampling", "policy", "seed", "bench")
_WARM_UP_TOKENS = 4
T = TypeVar("T")


@dataclass(frozen=True)
class Recording:
    """Where every arm starts: the state at the end of the recorded training, and the step that would come next."""

    model: ModelFolder
    policy: Policy
    cache: RolloutCache
    plan: StepPlan
    prompts: list[Prompt]
    """Those of the step."""


def rotated(arms: Sequence[T], repeat: int) -> list[T]:
    """Another arm goes first in every repetition, so that a machine that warms up or slows down favours none."""
    turn = repeat % len(arms)
    return [*arms[turn:], *arms[:turn]]


def recording_overrides(overrides: Sequence[str], runs: Mapping[str, RunConfig], folder: Path) -> list[str]:
    """What turns an arm's command line into that of the training to record."""
    topk = max(run.reuse.topk for run in runs.values())
    epochs = next(iter(runs.values())).bench.from_epoch - 1
    return [
        *overrides, "name=recording", f"output_dir={folder}", "reuse=exact", "reuse.log_lenience=null",
        "reuse.correction=none", "reuse.verifier=policy", f"reuse.topk={topk}", "drafter=off",
        f"trainer.epochs={epochs}", "trainer.max_steps=null", "trainer.val_every=0",
    ]  # fmt: skip


def check_arms(runs: Mapping[str, RunConfig]) -> None:
    """ValueError where arms differ in more than reuse and drafting, or there is nothing to record."""
    (first, base), *others = runs.items()
    for name, run in others:
        if differ := [key for key in _SHARED if getattr(run, key) != getattr(base, key)]:
            raise ValueError(
                f"bench.kind=rollouts draws all arms' rollouts from the same weights, and {name} differs from {first} "
                f"in {', '.join(differ)}: set that for all arms, or use bench.kind=trainings"
            )
    if base.bench.from_epoch < 2:
        raise ValueError(
            "bench.kind=rollouts needs bench.from_epoch >= 2: in the first epoch there is nothing to reuse"
        )
    for name, run in runs.items():
        if make_drafter(run.drafter).has_head and run.drafter.head.source in ("scratch", "native"):
            raise ValueError(
                f"{name}: bench.kind=rollouts trains no draft head: give drafter.head.source a folder that "
                "experiment=draft_warmup wrote"
            )


def load_recording(folder: Path, from_epoch: int) -> Recording:
    """The finished training in `folder`: policy, cache, and the first step of `from_epoch`."""
    run = read_run(folder)
    found = checkpoint.newest(folder / "checkpoints")
    assert found is not None, "a finished training has a checkpoint"
    model = resolve_model(run.model)
    prompts = load_prompts(run.data, load_tokenizer(model), run.model.max_length, run.sampling.max_new_tokens)
    updates = len(plan_steps(run, len(prompts))) * run.algorithm.updates_per_step
    policy = factories.make_policy(run, model, total_updates=updates)
    policy.load(found.folder / "policy")
    cache = factories.make_cache(run, keep=from_epoch)
    cache.load(found.folder)
    longer = dataclasses.replace(run, trainer=dataclasses.replace(run.trainer, epochs=from_epoch))
    plan = plan_steps(longer, len(prompts))[found.step]
    return Recording(model, policy, cache, plan, [prompts[i] for i in plan.prompts])


def measure_all(runs: Mapping[str, RunConfig], root: Path, console: Console) -> list[Measurement]:
    """Every arm at every number of slots, `bench.repeats` times; what `root` already holds is not measured again."""
    bench = next(iter(runs.values())).bench
    path = root / RESULTS
    done = [Measurement(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(m.arm, m.slots, m.repeat) for m in done}
    order = [(arm, repeat) for repeat in range(bench.repeats) for arm in rotated(list(runs), repeat)]
    recording: Recording | None = None
    for slots in bench.slots:
        todo = [(arm, repeat) for arm, repeat in order if (arm, slots, repeat) not in known]
        if not todo:
            continue
        recording = recording or load_recording(root / RECORDING, bench.from_epoch)
        drafters = [runs[arm].drafter for arm, _ in todo]
        console.print(f"{slots} slots: starting an engine per drafter")
        with start_engines(runs, drafters, recording, slots, root) as engines:
            for arm, repeat in todo:
                engine, head = engines[repr(runs[arm].drafter)]
                result = measure(recording, runs[arm], engine, arm, slots, repeat, head)
                with open(path, "a") as file:
                    file.write(json.dumps(dataclasses.asdict(result)) + "\n")
                done.append(result)
                console.print(
                    f"    {slots} slots, repetition {repeat + 1}: {arm:<20} {result.values['time/rollout_s']:7.2f} s"
                )
    return [m for m in done if m.arm in runs and m.slots in bench.slots and m.repeat < bench.repeats]


@contextmanager
def start_engines(
    runs: Mapping[str, RunConfig], drafters: Sequence[DrafterConfig], recording: Recording, slots: int, root: Path
) -> Iterator[dict[str, tuple[Engine, Head]]]:
    """repr(drafter) -> its warm engine, and the draft head's tensors; all engines are alive together, so that the arms
    can take turns."""
    run = next(iter(runs.values()))
    with ExitStack() as stack:
        engines: dict[str, tuple[Engine, Head]] = {}
        for config in drafters:
            if repr(config) in engines:
                continue
            drafter = make_drafter(config).fits(slots, cpu=installed().cpu)
            source = Path(config.head.source) if drafter.has_head else None
            log = root / f"engine-{len(engines)}-{drafter.name}.log"
            engine = factories.make_engine(run, recording.model, drafter, log=log, head=source, slots=slots)
            engines[repr(config)] = engine, [] if source is None else read_head(source)
            stack.callback(engine.close)
            engine.observe([rollout for _, rollout in recording.cache])
            some = recording.prompts[0].token_ids
            engine.generate([GenerationRequest(some, some[:0], _WARM_UP_TOKENS, seed) for seed in range(slots)])
        yield engines


def measure(
    recording: Recording, run: RunConfig, engine: Engine, arm: str, slots: int, repeat: int, head: Head = ()
) -> Measurement:
    """Draw the step's rollouts once, exactly as a training's step does: refit (not timed: all arms pay it alike, and
    it empties the engine's prefix cache), lookup, verification, generation."""
    plan, policy = recording.plan, recording.policy
    drafter = make_drafter(run.drafter)
    drafter.observe([rollout for _, rollout in recording.cache])
    engine.refit(chain(policy.weights(), head), policy.version, drafter.refit_extras(policy.vocab_size))
    run = dataclasses.replace(run, seed=run.seed + repeat)
    reuse = factories.make_reuse(run, recording.model, recording.cache)
    reuse.cache = _as_cached_by(reuse.topk, recording.cache)
    generator = factories.make_generator(run, policy, engine, reuse)
    groups = -(-slots * run.bench.rollouts_per_slot // run.algorithm.group_size)
    batch = generator.rollouts(recording.prompts[:groups], step=plan.step, epoch=plan.epoch, version=policy.version)
    seconds = {"verify": batch.verify_s, "plan": batch.plan_s, "generate": batch.generate_s}
    times = {f"time/{name}_s": value for name, value in seconds.items()}
    return Measurement(arm, slots, repeat, batch.metrics() | times | {"time/rollout_s": sum(seconds.values())})


def _as_cached_by(k: int, cache: RolloutCache) -> RolloutCache:
    """What a training of this arm would have cached: no more than the `k` candidates that it keeps. (Lenient reuse as
    published keeps none, and tests a token by its own q alone.)"""
    own = RolloutCache(cache.max_bytes, delay=cache.delay, max_age=cache.max_age, keep=cache.keep)
    for epoch, rollout in cache:
        topk = None
        if k and rollout.topk is not None:
            topk = TopK(rollout.topk.ids[:, :k], rollout.topk.logprobs[:, :k])
        own.put(rollout.with_(topk=topk), epoch)
    return own
