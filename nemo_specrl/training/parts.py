"""What a run is made of, built in the order in which mistakes are cheapest, and taken down in reverse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nemo_specrl.algorithms import make_algorithm
from nemo_specrl.config.run import RunConfig
from nemo_specrl.contracts.algorithm import Algorithm
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.contracts.engine import Engine
from nemo_specrl.contracts.policy import Policy
from nemo_specrl.data import prompts_digest
from nemo_specrl.drafting import make_drafter
from nemo_specrl.models import ModelFolder, Tokenizer, model_digest
from nemo_specrl.policy.megatron.bridge import auto_bridge
from nemo_specrl.policy.megatron.parallel import init_parallel
from nemo_specrl.reporting import run_report
from nemo_specrl.rewards import Scorer
from nemo_specrl.rollout.gate import Gate
from nemo_specrl.rollout.generator import RolloutGenerator
from nemo_specrl.rollout.vllm.versions import installed
from nemo_specrl.tracking import Tracker, create_tracker, sample_node
from nemo_specrl.training import factories
from nemo_specrl.training.checks import Material
from nemo_specrl.training.ending import Ending
from nemo_specrl.training.folder import check_inputs
from nemo_specrl.training.plan import plan_steps
from nemo_specrl.training.progress import Progress
from nemo_specrl.training.ranks import barrier, broadcast, is_further_node, is_main
from nemo_specrl.training.refit import refit
from nemo_specrl.training.reports import GateReport
from nemo_specrl.types import IntArray, Prompt


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
    policy: Policy
    engine: Engine | None
    drafter: Drafter
    generator: RolloutGenerator
    gate: Gate
    algorithm: Algorithm
    reward: Scorer | None
    tracker: Tracker | None
    ending: Ending
    progress: Progress

    def decode(self, token_ids: IntArray) -> str:
        """Response text without special tokens. Ids above the tokenizer's range, which base models do sample, are
        dropped: they have no text."""
        known = [int(i) for i in token_ids if i < len(self.tokenizer)]
        return self.tokenizer.decode(known, skip_special_tokens=True)

    def refit(self) -> None:
        """Make the engine sample from the present policy. Collective."""
        refit(self.policy, self.engine, self.drafter)

    @property
    def remembers(self) -> bool:
        """Whether finished rollouts go into the cache: for reuse, or for a resumed drafter that learns from them.
        Without either they would be ballast in every checkpoint."""
        return self.generator.reuse.rule is not None or self.drafter.window > 0


@contextmanager
def build(run: RunConfig, material: Material, folder: Path, *, resumed: bool, track: bool = True) -> Iterator[Parts]:
    """All parts of a run that passed its checks; closed in reverse order, whatever happens. Collective over ranks.

    The tracker is closed with the run's true status (`Ending`)."""
    if run.policy.hf_mapping == "bridge":
        auto_bridge()
    if "WORLD_SIZE" in os.environ:  # the ranks must know each other before one of them speaks for all
        init_parallel(run.policy)
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(enabled=is_main()))
        model, prompts = material.model, material.prompts
        digest = model_digest(model.path)
        if track:
            check_inputs(run, folder, material.data.identity)
        tracker = create_tracker(run, folder, resumed=resumed) if track and is_main() else None
        ending = stack.enter_context(Ending())
        ending.tracker = tracker
        if tracker is not None:
            for context, part in (("training", prompts), ("validation", material.validation)):
                if part:
                    tracker.dataset(
                        material.data.name, prompts_digest(part), run.data.source, context, subset=run.data.name,
                        split=run.data.split,
                    )  # fmt: skip
            tracker.at_end(run_report)
            tracker.tags({"model.digest": digest})
        sampling = ExitStack()
        if track and is_further_node():
            stack.enter_context(sampling)
            sampling.enter_context(sample_node(folder, run.tracking.system_metrics_every_s))
        reward = stack.enter_context(Scorer(run.reward)) if is_main() else None
        progress.phase("policy")
        updates = len(plan_steps(run, len(prompts))) * run.algorithm.updates_per_step
        policy = factories.make_policy(run, model, total_updates=updates)
        drafter = make_drafter(run.drafter)
        companion = drafter.join(policy)
        if run.algorithm.kl_coef > 0:
            policy.snapshot_reference()
        served, head = drafter, None
        if run.trainer.task == "warmup":  # it is the head's data that is drawn, without its help
            served = make_drafter(replace(run.drafter, method="off", speculative_config={}))
        elif companion is not None and drafter.has_head:
            head = folder / "draft_head"
            companion.export(head)
        served = served.fits(run.engine.max_num_seqs, cpu=installed().cpu)
        engine: Engine | None = None
        if is_main():
            progress.phase("engine")
            engine = factories.make_engine(run, model, served, log=folder / "engine.log", head=head)
            stack.callback(engine.close)
            if tracker is not None and served.name != drafter.name and run.trainer.task != "warmup":
                tracker.tags({"drafter_switched_off": drafter.name})
        cache = factories.make_cache(run, keep=drafter.window)
        reuse = factories.make_reuse(run, model, cache)
        generator = factories.make_generator(
            run, policy, engine, reuse, share=broadcast, on_progress=progress.advance_to
        )
        gate = Gate(
            engine,
            policy,
            run.gate,
            seed=run.seed,
            max_new_tokens=run.sampling.max_new_tokens,
            drafter=drafter,
            progress=progress,
            share=broadcast,
            report=GateReport(tracker, progress),
        )
        yield Parts(
            run=run, folder=folder, model=model, model_digest=digest, tokenizer=material.tokenizer, prompts=prompts,
            validation=material.validation, policy=policy, engine=engine, drafter=drafter, generator=generator,
            gate=gate, algorithm=make_algorithm(run.algorithm, run.reuse.correction), reward=reward, tracker=tracker,
            ending=ending, progress=progress,
        )  # fmt: skip
        sampling.close()
        barrier()  # every node's last sample is written before rank 0 closes the run and sends what is left
