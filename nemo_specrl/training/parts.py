"""What a run is made of, built in the order in which mistakes are cheapest, and taken down in reverse."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from nemo_specrl.config.run import RunConfig
from nemo_specrl.data import load_prompts, split_validation
from nemo_specrl.models import ModelFolder, Tokenizer, load_tokenizer, model_digest, resolve_model
from nemo_specrl.policy.megatron import MegatronPolicy
from nemo_specrl.policy.megatron.bridge import auto_bridge
from nemo_specrl.policy.megatron.parallel import init_parallel
from nemo_specrl.rewards import Scorer
from nemo_specrl.rollout.engine import Engine
from nemo_specrl.rollout.generator import RolloutGenerator
from nemo_specrl.rollout.vllm.engine import VllmEngine
from nemo_specrl.rollout.vllm.shortlist import TokenCounts
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.tracking import Tracker, create_tracker, sample_node
from nemo_specrl.tracking.provenance import prompts_digest
from nemo_specrl.training.acceptance import AcceptanceFloor
from nemo_specrl.training.plan import plan_steps
from nemo_specrl.training.progress import Progress
from nemo_specrl.training.ranks import barrier, broadcast, is_further_node, is_main
from nemo_specrl.types import IntArray, Prompt, Rollout


@dataclass
class Parts:
    """The parts of a run. Engine, cache contents, reward and tracker live on rank 0 only."""

    run: RunConfig
    folder: Path
    model: ModelFolder
    model_digest: str
    tokenizer: Tokenizer
    prompts: list[Prompt]
    """Trained on."""
    validation: list[Prompt]
    """Held out."""
    policy: MegatronPolicy
    engine: Engine | None
    generator: RolloutGenerator
    cache: RolloutCache
    reward: Scorer | None
    tracker: Tracker | None
    ending: Ending
    progress: Progress
    floor: AcceptanceFloor
    """Counts the steps whose drafts were hardly accepted."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Of the run's rollouts so far: what a draft head with a short vocabulary is given."""

    def decode(self, token_ids: IntArray) -> str:
        """Response text without special tokens. Ids above the tokenizer's range, which base models do sample, are
        dropped: they have no text."""
        known = [int(i) for i in token_ids if i < len(self.tokenizer)]
        return self.tokenizer.decode(known, skip_special_tokens=True)

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Let a drafter in the engine learn from finished rollouts; of all of them only `history` does."""
        if self.engine is not None and self.run.drafter.method == "history":
            self.engine.observe(rollouts)


@contextmanager
def build(run: RunConfig, folder: Path, *, resumed: bool, track: bool = True) -> Iterator[Parts]:
    """All parts of a run; closed in reverse order, whatever happens. Collective over ranks.

    The tracker is closed with the run's true status: FINISHED, FAILED (an exception) or KILLED (Ctrl-C)."""
    if run.policy.hf_mapping == "bridge":
        auto_bridge()
    if "WORLD_SIZE" in os.environ:  # the ranks must know each other before one of them speaks for all
        init_parallel(run.policy)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(enabled=is_main()))
        progress.phase("model")
        if is_main():  # one process converts or downloads, the others find it done
            resolve_model(run.model)
        broadcast(None)
        model = resolve_model(run.model)
        digest = model_digest(model.path)
        tokenizer = load_tokenizer(model)
        progress.phase("data")
        prompts = load_prompts(run.data, tokenizer, run.model.max_length, run.sampling.max_new_tokens)
        held_out = run.trainer.val_prompts if run.trainer.val_every else 0
        prompts, validation = split_validation(prompts, held_out)
        tracker = create_tracker(run, folder, resumed=resumed) if track and is_main() else None
        ending = stack.enter_context(Ending())
        ending.tracker = tracker
        if tracker is not None:
            tracker.dataset(run.data.source, prompts_digest(prompts), run.data.source)
            tracker.tags({"model.digest": digest})
        sampling = ExitStack()
        if track and is_further_node():
            stack.enter_context(sampling)
            sampling.enter_context(sample_node(folder, run.tracking.system_metrics_every_s))
        reward = stack.enter_context(Scorer(run.reward)) if is_main() else None
        if reward is not None:
            reward.check([*prompts, *validation])
        progress.phase("policy")
        updates = len(plan_steps(run, len(prompts))) * run.algorithm.updates_per_step
        learns = run.drafter.method == "mtp"
        policy = MegatronPolicy(
            model.path, run.policy, run.sampling, seed=run.seed, total_updates=updates,
            head=run.drafter.head if learns else None,
        )  # fmt: skip
        if run.algorithm.kl_coef > 0:
            policy.snapshot_reference()
        engine: Engine | None = None
        drafter, head = run.drafter, None
        if learns and run.trainer.task == "warmup":
            drafter = replace(drafter, method="off")  # it is the head's data that is drawn, without its help
        elif learns:
            head = folder / "draft_head"
            policy.export_head(head)
        if is_main():
            progress.phase("engine")
            engine = VllmEngine(
                model.path,
                run.engine,
                run.sampling,
                drafter,
                max_length=run.model.max_length,
                seed=run.seed,
                eos_token_ids=model.eos_token_ids,
                log=folder / "engine.log",
                head=head,
            )
            stack.callback(engine.close)
            if tracker is not None and engine.drafter.method != drafter.method:
                tracker.tags({"drafter_switched_off": drafter.method})
        window = run.drafter.window if run.drafter.method == "history" else 0
        cache = RolloutCache(run.reuse.cache_mib * 2**20, delay=run.reuse.delay, max_age=run.reuse.max_age, keep=window)
        generator = RolloutGenerator(
            run,
            policy,
            engine,
            cache,
            eos_token_ids=model.eos_token_ids,
            share=broadcast,
            share_batch=broadcast,
            on_progress=progress.advance_to,
        )
        yield Parts(
            run=run, folder=folder, model=model, model_digest=digest, tokenizer=tokenizer, prompts=prompts,
            validation=validation, policy=policy, engine=engine, generator=generator, cache=cache, reward=reward,
            tracker=tracker, ending=ending, progress=progress,
            floor=AcceptanceFloor(run.drafter.head.acceptance_floor, run.drafter.head.floor_patience),
        )  # fmt: skip
        sampling.close()
        barrier()  # every node's last sample is written before rank 0 closes the run and sends what is left


class Ending:
    """Ends the tracked run with what really happened."""

    def __init__(self) -> None:
        self.tracker: Tracker | None = None
        self.interrupted = False
        """Set when the run stopped early and is to be continued: its status is KILLED until it is."""

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        killed = self.interrupted if kind is None else issubclass(kind, KeyboardInterrupt | SystemExit)
        if self.tracker is not None:
            self.tracker.close("KILLED" if killed else "FINISHED" if kind is None else "FAILED")
