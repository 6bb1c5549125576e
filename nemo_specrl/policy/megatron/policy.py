"""MegatronPolicy: the Policy protocol of `nemo_specrl.contracts.policy` on Megatron-core.

Every rank is given the same rows. Data-parallel replicas work on different rows; the last pipeline stage computes
losses and scores; every rank gets all results. Shapes: B rows, T response tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads

from nemo_specrl.config import bounds
from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.contracts.companion import Companion, Lesson, Ride
from nemo_specrl.contracts.rows import LossFn, Reducer, Row, Scores, TrainRow
from nemo_specrl.models.architecture import read_architecture
from nemo_specrl.policy.megatron import batching, state
from nemo_specrl.policy.megatron.batching import MicroBatch
from nemo_specrl.policy.megatron.bridge import hf_mapping
from nemo_specrl.policy.megatron.forward import POSITIONS, at_responses, run_pipeline, score_positions, up_to
from nemo_specrl.policy.megatron.law import Law, log_probs
from nemo_specrl.policy.megatron.loss import loss_batch, token_weights
from nemo_specrl.policy.megatron.model import DTYPES, build_model
from nemo_specrl.policy.megatron.optimizer import build_optimizer
from nemo_specrl.policy.megatron.parallel import init_parallel
from nemo_specrl.policy.megatron.schedule import LearningRate
from nemo_specrl.types import FloatArray

log = logging.getLogger(__name__)
C = TypeVar("C", bound=Companion)


class MegatronPolicy:
    """A trainable dense decoder (Llama, Qwen2, Qwen3), split over TP x PP x DP ranks."""

    def __init__(
        self,
        model: Path | str,
        config: PolicyConfig,
        sampling: SamplingConfig,
        *,
        seed: int,
        total_updates: int | None,
    ) -> None:
        """`model`: a local Hugging Face folder. `total_updates`: the run's length, for schedules that decay.

        Raises ValueError for a folder, layout or setting that cannot work, before anything is built."""
        bounds.check(config, "policy")
        folder = self.folder = Path(model)
        """The model's folder."""
        self.config = config
        self.architecture = read_architecture(folder)
        self._mapping = hf_mapping(config.hf_mapping, folder, self.architecture)
        self.layout = init_parallel(config)
        if self.layout.device.type == "cuda":
            from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

            model_parallel_cuda_manual_seed(seed)
        self.law = Law.of(
            sampling,
            self.architecture.vocab_size,
            self.layout.tp,
            self.layout.tp_rank,
            parallel_state.get_tensor_model_parallel_group(),
        )
        self._learning_rate = LearningRate(config, total_updates)
        self._total_updates = total_updates
        self.model = build_model(self.architecture, config, self.layout)
        self._mapping.load(self.model, self.layout, DTYPES[config.dtype])
        self._ddp = DistributedDataParallel(
            self.model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, check_for_nan_in_grad=False),
            self.model,
        )
        self.model.config.finalize_model_grads_func = _finalize
        self._optimizer = build_optimizer(self._ddp, config, self.layout)
        self._about = state.manifest(self.layout, config.dtype, state.fingerprint(folder, self.architecture))
        self._reference: list[torch.Tensor] | None = None
        self._version = 0
        self._companions: list[Companion] = []

    def join(self, companion: C) -> C:
        """Let a companion ride this policy's passes from now on, and lie in its checkpoints."""
        assert companion.name not in {c.name for c in self._companions}
        self._companions.append(companion)
        return companion

    @property
    def companions(self) -> Sequence[Companion]:
        """See `Policy.companions`."""
        return self._companions

    @property
    def version(self) -> int:
        """Number of `update` calls so far, over all resumes."""
        return self._version

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.architecture.vocab_size

    def score(self, rows: Sequence[Row], *, reference: bool = False) -> list[Scores]:
        """Log-probabilities and entropies under the sampling law, for all rows, on every rank; no gradient.

        `reference`: of the policy that `snapshot_reference` froze."""

        def finish(batch: MicroBatch, hidden: torch.Tensor) -> dict[int, Scores]:
            logprobs, entropy = score_positions(self.model, at_responses(batch, hidden), batch.targets, self.law)
            parts = zip(
                batch.rows,
                torch.split(logprobs.cpu(), list(batch.lengths)),
                torch.split(entropy.cpu(), list(batch.lengths)),
                strict=True,
            )
            return {row: Scores(p.numpy(), h.numpy()) for row, p, h in parts}

        empty = np.empty(0, dtype=np.float32)
        with self._frozen() if reference else torch.no_grad():
            return self._results(rows, finish, Scores(empty, empty))

    def reduce(self, rows: Sequence[Row], reducer: Reducer) -> list[list[Any]]:
        """For each row the list of its chunks' reductions (at most 512 positions each), on every rank; no gradient."""

        def finish(batch: MicroBatch, hidden: torch.Tensor) -> dict[int, list[Any]]:
            by_row = torch.split(at_responses(batch, hidden), list(batch.lengths))
            chunks = [
                (row, k * POSITIONS, chunk)
                for row, states in zip(batch.rows, by_row, strict=True)
                for k, chunk in enumerate(torch.split(states, POSITIONS))
            ]
            found: dict[int, list[Any]] = {row: [] for row in batch.rows}
            for some in up_to(POSITIONS, chunks):
                logits = self.model.logits(torch.cat([states for *_, states in some]))
                parts = torch.split(logits, [len(states) for *_, states in some])
                for (row, first, _), part in zip(some, parts, strict=True):
                    found[row].append(reducer(row, first, log_probs(part, self.law)))
            return found

        with torch.no_grad():
            return self._results(rows, finish, [])

    def update(
        self,
        rows: Sequence[TrainRow],
        loss_fn: LossFn,
        *,
        loss_level: str,
        lessons: Sequence[Lesson] = (),
    ) -> dict[str, float]:
        """One optimizer update on one mini-batch, and one of each companion in `lessons`, which learns from the hidden
        states of the same forward pass, before the policy moves.

        Returns `loss`, `grad_norm` (before clipping), `lr`, `skipped` (1 where no token was unmasked: nothing is
        updated, but the call counts), `outside_law_tokens`, the loss's own metrics and the companions'.
        Raises RuntimeError when loss or gradients are not finite; parameters and optimizer are then untouched."""
        batching.check_rows(rows, self.vocab_size)
        weights = token_weights(rows, loss_level)
        lr = self._learning_rate(self._version)
        chosen = [i for i, w in enumerate(weights) if w.any()]
        if not chosen:
            self._version += 1
            return {"loss": 0.0, "grad_norm": 0.0, "lr": lr, "skipped": 1.0, "outside_law_tokens": 0.0}
        mine = batching.share(rows, chosen, self.layout.dp_rank, self.layout.dp)
        idle = not mine
        if idle:
            # Every rank must run the schedule: one without rows takes any row, at weight 0.
            mine, weights = chosen[:1], [np.zeros_like(w) for w in weights]

        def finish(batch: MicroBatch, hidden: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            learnt = {k: v for ride in rides for k, v in ride.after_forward(batch, hidden).items()}
            flat, _ = score_positions(self.model, at_responses(batch, hidden), batch.targets, self.law)
            logprobs, prepared, outside = loss_batch(rows, weights, batch, flat)
            loss, metrics = loss_fn(logprobs, prepared)
            return loss, {"loss": loss.detach(), "outside_law_tokens": outside, **metrics, **learnt}

        masks = [row.mask for row in rows]
        rides = [lesson.companion.begin(rows, masks, lesson.weights, mine, idle) for lesson in lessons]
        self._ddp.zero_grad_buffer()
        batches = batching.micro_batches(rows, mine, self.config.micro_batch_tokens, self.layout.device)
        reports = run_pipeline(self._ddp, batches, finish, backward=True)
        summed = self.layout.sum(reports)
        if not math.isfinite(summed["loss"]):
            raise RuntimeError(_not_finite("loss", summed["loss"], self._version))
        norm = self._optimizer.step(lr)
        if not math.isfinite(norm):
            raise RuntimeError(_not_finite("gradient norm", norm, self._version))
        self._version += 1
        learnt = {k: v for ride in rides for k, v in ride.end(summed).items()}
        return {**summed, "grad_norm": norm, "lr": lr, "skipped": 0.0, **learnt}

    def ride(
        self,
        rows: Sequence[Row],
        begin: Callable[[Sequence[FloatArray], Sequence[int], bool], Ride],
        *,
        forward: bool = True,
    ) -> dict[str, float]:
        """One pass for a companion alone, the policy untouched; what the ride's end returns (nothing where no row has a
        response). Collective.

        `begin(masks, mine, idle)` gives the ride: masks [T] that leave nothing out, this replica's rows, and whether
        they count nothing here. `forward` False: the ride has its hidden states already, and is given none."""
        chosen, masks = self._all_tokens(rows)
        if not chosen:
            return {}
        mine = batching.share(rows, chosen, self.layout.dp_rank, self.layout.dp)
        ride = begin(masks, mine or chosen[:1], not mine)
        reports: list[Any] = []
        if mine:
            batches = batching.micro_batches(rows, mine, self.config.micro_batch_tokens, self.layout.device)
            with torch.no_grad():
                if forward:
                    reports = run_pipeline(self._ddp, batches, ride.after_forward, backward=False)
                elif self.layout.last_stage:
                    reports = [ride.after_forward(batch, torch.empty(0)) for batch in batches]
        return ride.end(self.layout.sum(reports))

    def snapshot_reference(self) -> None:
        """Freeze a copy of the current weights for `score(..., reference=True)`. A checkpoint does not hold it:
        take it before `load`, when the policy still is the model that the run started from."""
        self._reference = [p.detach().clone() for p in self.model.parameters()]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face (name, tensor) pairs in `config.dtype`, complete on every rank. Collective: exhaust it on
        all ranks. A tensor may share the policy's memory, valid until the next update."""
        return self._mapping.export(self.model, self.layout, DTYPES[self.config.dtype])

    def save(self, folder: Path) -> None:
        """Write this rank's share of model, optimizer and schedule into `folder` (which exists)."""
        content = {"version": self._version, "optimizer": self._optimizer.state_dict()}
        if self.layout.device.type == "cuda":
            content["model"] = [p.detach() for p in self.model.parameters()]
        for companion in self._companions:
            content[companion.name] = companion.state_dict()
        state.write(folder, self.layout, self._about, content)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; ValueError when layout or model differ, or a file is missing or corrupt."""
        content = state.read(folder, self.layout, self._about)
        if "model" in content:
            with torch.no_grad():
                for parameter, saved in zip(self.model.parameters(), content["model"], strict=True):
                    parameter.copy_(saved)
        self._optimizer.load_state_dict(content["optimizer"])
        for companion in self._companions:
            if companion.name in content:
                companion.load_state_dict(content[companion.name])
            else:
                log.warning("checkpoint %s has no %s: this run's starts as configured", folder, companion.name)
        if unused := content.keys() - {"version", "optimizer", "model", *(c.name for c in self._companions)}:
            log.warning("checkpoint %s has a %s, which this run does not use", folder, ", ".join(sorted(unused)))
        self._version = int(content["version"])
        self._learning_rate = LearningRate(self.config, self._total_updates)

    def _all_tokens(self, rows: Sequence[Row]) -> tuple[list[int], list[FloatArray]]:
        """The rows that have a response, and masks that leave nothing out."""
        batching.check_rows(rows, self.vocab_size)
        masks = [np.ones(len(row.token_ids), dtype=np.float32) for row in rows]
        return [i for i, mask in enumerate(masks) if mask.any()], masks

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """The reference's weights in the policy's place; no gradient."""
        assert self._reference is not None, "snapshot_reference() first"
        parameters = list(self.model.parameters())
        current = [p.data for p in parameters]
        try:
            for parameter, frozen in zip(parameters, self._reference, strict=True):
                parameter.data = frozen
            with torch.no_grad():
                yield
        finally:
            for parameter, data in zip(parameters, current, strict=True):
                parameter.data = data

    def each_row(
        self, rows: Sequence[Row], finish: Callable[[MicroBatch, torch.Tensor], dict[int, Any]]
    ) -> dict[int, Any]:
        """`finish` over this replica's rows; its results merged, on the last stage. Collective over the pipeline."""
        batching.check_rows(rows, self.vocab_size)
        chosen = [i for i, row in enumerate(rows) if len(row.token_ids) > 0]
        mine = batching.share(rows, chosen, self.layout.dp_rank, self.layout.dp)
        if not mine:
            return {}
        batches = batching.micro_batches(rows, mine, self.config.micro_batch_tokens, self.layout.device)
        merged: dict[int, Any] = {}
        for part in run_pipeline(self._ddp, batches, finish, backward=False):
            merged.update(part)
        return merged

    def _results(
        self, rows: Sequence[Row], finish: Callable[[MicroBatch, torch.Tensor], dict[int, Any]], empty: Any
    ) -> list[Any]:
        """One result per row, in order, on every rank; `empty` for rows without a response."""
        found = self.each_row(rows, finish)
        merged: dict[int, Any] = {}
        for part in self.layout.gather(found if self.layout.reports else {}):
            merged.update(part)
        return [merged.get(i, empty) for i in range(len(rows))]


def _finalize(model: list[Any], _num_tokens: Any = None, **groups: Any) -> None:
    """Megatron's gradient reduction over replicas and tied embeddings, without its division by the token count."""
    finalize_model_grads(model, None, **groups)


def _not_finite(what: str, value: float, version: int) -> str:
    return (
        f"the {what} of update {version} is {value}; nothing was updated. Lower policy.lr, set policy.clip_grad, "
        "try policy.dtype=fp32, and look at the newest rollouts' log-probabilities and rewards"
    )
