"""MegatronPolicy: the Policy protocol of `nemo_specrl.policy.base` on Megatron-core.

Every rank is given the same rows. Data-parallel replicas work on different rows; the last pipeline stage computes
losses and scores; every rank gets all results. Shapes: B rows, T response tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads

from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.config.head import HeadConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.policy.base import LossFn, Reducer, Row, Scores, TrainRow
from nemo_specrl.policy.megatron import batching, state
from nemo_specrl.policy.megatron.architecture import read_architecture
from nemo_specrl.policy.megatron.batching import MicroBatch, Tokens
from nemo_specrl.policy.megatron.bridge import hf_mapping
from nemo_specrl.policy.megatron.forward import POSITIONS, at_responses, run_pipeline, score_positions, up_to
from nemo_specrl.policy.megatron.law import Law, log_probs
from nemo_specrl.policy.megatron.loss import loss_batch, token_weights
from nemo_specrl.policy.megatron.model import DTYPES, build_model
from nemo_specrl.policy.megatron.optimizer import build_optimizer
from nemo_specrl.policy.megatron.parallel import init_parallel
from nemo_specrl.policy.megatron.schedule import LearningRate
from nemo_specrl.policy.megatron.weights import export_weights
from nemo_specrl.policy.mtp.draft import DIVERGED, DraftHead, Lesson, agreement_report
from nemo_specrl.policy.mtp.weights import head_slots, write_head
from nemo_specrl.types import FloatArray

log = logging.getLogger(__name__)


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
        head: HeadConfig | None = None,
    ) -> None:
        """`model`: a local Hugging Face folder. `total_updates`: the run's length, for schedules that decay.
        `head`: hold a draft head, too; without one, everything is as if there were no such thing.

        Raises ValueError for a folder, layout or setting that cannot work, before anything is built."""
        if config.dtype not in DTYPES:
            raise ValueError(f"policy.dtype={config.dtype!r} is unknown; known are {', '.join(DTYPES)}")
        folder = self._folder = Path(model)
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
        self._model = build_model(self.architecture, config, self.layout)
        self._mapping.load(self._model, self.layout, DTYPES[config.dtype])
        self._ddp = DistributedDataParallel(
            self._model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, check_for_nan_in_grad=False),
            self._model,
        )
        self._model.config.finalize_model_grads_func = _finalize
        self._optimizer = build_optimizer(self._ddp, config, self.layout)
        self._about = state.manifest(self.layout, config.dtype, state.fingerprint(folder, self.architecture))
        self._reference: list[torch.Tensor] | None = None
        self._version = 0
        self.head: DraftHead | None = None
        if head is not None:
            self.head = DraftHead(head, config, self.architecture, self.layout, self._model, self.law, folder)

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
            logprobs, entropy = score_positions(self._model, at_responses(batch, hidden), batch.targets, self.law)
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
                logits = self._model.logits(torch.cat([states for *_, states in some]))
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
        head_weights: Sequence[float] | None = None,
    ) -> dict[str, float]:
        """One optimizer update on one mini-batch; with `head_weights` (one per row) also one of the draft head, which
        learns from the hidden states of the same forward pass, before the policy moves (metrics `draft/*`).

        Returns `loss`, `grad_norm` (before clipping), `lr`, `skipped` (1 where no token was unmasked: nothing is
        updated, but the call counts), `outside_law_tokens` and the loss's own metrics.
        Raises RuntimeError when loss or gradients are not finite; parameters and optimizer are then untouched. A head's
        gradients that are not finite leave the head as it is and the policy updated: `draft/skipped` = 1."""
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
            draft = lesson.after_forward(batch, hidden) if lesson else {}
            flat, _ = score_positions(self._model, at_responses(batch, hidden), batch.targets, self.law)
            logprobs, prepared, outside = loss_batch(rows, weights, batch, flat)
            loss, metrics = loss_fn(logprobs, prepared)
            return loss, {"loss": loss.detach(), "outside_law_tokens": outside, **metrics, **draft}

        lesson = self._lesson(rows, [row.mask for row in rows], head_weights, mine, idle)
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
        draft = lesson.end(summed) if lesson else {}
        return {**summed, "grad_norm": norm, "lr": lr, "skipped": 0.0, **draft}

    def start_head(self, rows: Sequence[Row]) -> None:
        """Give a head from scratch its closed-form start on these rollouts of the policy (mtp/start.py); one forward
        pass. Nothing happens where the head has had its start."""
        if self.head is None or not self.head.fresh:
            return
        chosen, masks = self._all_tokens(rows)
        mine = batching.share(rows, chosen, self.layout.dp_rank, self.layout.dp)
        with self.head.starting() as start, torch.no_grad():
            if mine:
                self.head.prepare(rows, mine)
                batches = batching.micro_batches(rows, mine, self.config.micro_batch_tokens, self.layout.device)
                run_pipeline(self._ddp, batches, lambda batch, _: start.after_forward(batch, masks), backward=False)

    def train_head(
        self,
        rows: Sequence[Row],
        weights: Sequence[float] | None = None,
        *,
        states: dict[int, torch.Tensor] | None = None,
        lr: float | None = None,
    ) -> dict[str, float]:
        """One update of the draft head on one mini-batch, the policy untouched; returns its metrics `draft/*`.

        `weights`: one per row, 1 by default. `states`: what `head_states` said of these very rows, which saves the
        forward pass while the policy stays as it is. `lr`: drafter.head.lr by default. Raises RuntimeError when the
        gradients are not finite; the head is then untouched."""
        chosen, masks = self._all_tokens(rows)
        if not chosen:
            return {}
        mine = batching.share(rows, chosen, self.layout.dp_rank, self.layout.dp)
        idle = not mine
        mine = mine or chosen[:1]
        lesson = self._lesson(rows, masks, [1.0] * len(rows) if weights is None else weights, mine, idle)
        assert lesson is not None
        batches = batching.micro_batches(rows, mine, self.config.micro_batch_tokens, self.layout.device)
        with torch.no_grad():
            if states is None or idle:
                reports = run_pipeline(self._ddp, batches, lesson.after_forward, backward=False)
            else:
                reports = [lesson.learn(b, _padded(b, states)) for b in batches if self.layout.last_stage]
        metrics = lesson.end(self.layout.sum(reports), lr)
        if metrics.get("draft/skipped"):
            raise RuntimeError(f"the draft head's gradients are not finite; the head was not updated. {DIVERGED}")
        return metrics

    def head_states(self, rows: Sequence[Row]) -> dict[int, torch.Tensor]:
        """{row: [P + T - 1, H] hidden states before the final norm} of this replica's rows, for `train_head`; empty but
        on the last stage."""
        assert self.head is not None, "the policy was built without a head"
        head = self.head

        def finish(batch: MicroBatch, _hidden: torch.Tensor) -> dict[int, torch.Tensor]:
            states = head.states(batch)
            return {row: states[: batching.length_of(rows[row]), k].clone() for k, row in enumerate(batch.rows)}

        with torch.no_grad():
            return self._run(rows, finish)

    def head_agreement(self, rows: Sequence[Row]) -> dict[str, float]:
        """How well the head foresees these rollouts, teacher-forced, by draft position: see `agreement_report`."""
        assert self.head is not None, "the policy was built without a head"
        head = self.head
        chosen, masks = self._all_tokens(rows)
        mine = batching.share(rows, chosen, self.layout.dp_rank, self.layout.dp)
        reports: list[dict[str, torch.Tensor]] = []
        if mine:
            head.prepare(rows, mine)
            batches = batching.micro_batches(rows, mine, self.config.micro_batch_tokens, self.layout.device)
            with torch.no_grad():
                reports = run_pipeline(
                    self._ddp, batches, lambda b, _: head.compare(b, head.states(b), masks), backward=False
                )
        return agreement_report(self.layout.sum(reports), head.config.depth)

    def snapshot_reference(self) -> None:
        """Freeze a copy of the current weights for `score(..., reference=True)`. A checkpoint does not hold it:
        take it before `load`, when the policy still is the model that the run started from."""
        self._reference = [p.detach().clone() for p in self._model.parameters()]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face (name, tensor) pairs in `config.dtype`, complete on every rank. Collective: exhaust it on
        all ranks. A tensor may share the policy's memory, valid until the next update."""
        return self._mapping.export(self._model, self.layout, DTYPES[self.config.dtype])

    def draft_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The head's (name, tensor) pairs in MiMo's layout, as `weights` gives the policy's; none without a head."""
        if self.head is None:
            return iter(())
        parameters, table = self.head.parameters(), head_slots(self.architecture, self.layout.pp)
        stored = self._model.config.params_dtype
        return export_weights(parameters, table, self.architecture, self.layout, stored, DTYPES[self.config.dtype])

    def export_head(self, folder: Path) -> None:
        """Write the head as a folder that `drafter.head.source` takes. Collective; rank 0 writes."""
        assert self.head is not None, "the policy was built without a head"
        tensors = list(self.draft_weights())
        if self.layout.rank == 0:
            write_head(tensors, self._folder, folder)

    def save(self, folder: Path) -> None:
        """Write this rank's share of model, optimizer and schedule into `folder` (which exists)."""
        content = {"version": self._version, "optimizer": self._optimizer.state_dict()}
        if self.layout.device.type == "cuda":
            content["model"] = [p.detach() for p in self._model.parameters()]
        if self.head is not None:
            content["head"] = self.head.state_dict()
        state.write(folder, self.layout, self._about, content)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; ValueError when layout or model differ, or a file is missing or corrupt."""
        content = state.read(folder, self.layout, self._about)
        if "model" in content:
            with torch.no_grad():
                for parameter, saved in zip(self._model.parameters(), content["model"], strict=True):
                    parameter.copy_(saved)
        self._optimizer.load_state_dict(content["optimizer"])
        if self.head is not None and "head" in content:
            self.head.load_state_dict(content["head"])
        elif (self.head is not None) != ("head" in content):
            log.warning("checkpoint %s and this run differ about a draft head: %s", folder, _HEADS["head" in content])
        self._version = int(content["version"])
        self._learning_rate = LearningRate(self.config, self._total_updates)

    def _lesson(
        self,
        rows: Sequence[Tokens],
        masks: Sequence[FloatArray],
        weights: Sequence[float] | None,
        mine: Sequence[int],
        idle: bool,
    ) -> Lesson | None:
        """An update of the head on `mine` of these rows; None where `weights` asks for none. Collective."""
        if weights is None:
            return None
        assert self.head is not None, "the policy was built without a head"
        return self.head.lesson(rows, masks, weights, mine, idle)

    def _all_tokens(self, rows: Sequence[Row]) -> tuple[list[int], list[FloatArray]]:
        """The rows that have a response, and masks that leave nothing out."""
        batching.check_rows(rows, self.vocab_size)
        masks = [np.ones(len(row.token_ids), dtype=np.float32) for row in rows]
        return [i for i, mask in enumerate(masks) if mask.any()], masks

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """The reference's weights in the policy's place; no gradient."""
        assert self._reference is not None, "snapshot_reference() first"
        parameters = list(self._model.parameters())
        current = [p.data for p in parameters]
        try:
            for parameter, frozen in zip(parameters, self._reference, strict=True):
                parameter.data = frozen
            with torch.no_grad():
                yield
        finally:
            for parameter, data in zip(parameters, current, strict=True):
                parameter.data = data

    def _run(self, rows: Sequence[Row], finish: Callable[[MicroBatch, torch.Tensor], dict[int, Any]]) -> dict[int, Any]:
        """`finish` over this replica's rows; its results merged (on the last stage)."""
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
        found = self._run(rows, finish)
        merged: dict[int, Any] = {}
        for part in self.layout.gather(found if self.layout.reports else {}):
            merged.update(part)
        return [merged.get(i, empty) for i in range(len(rows))]


def _finalize(model: list[Any], _num_tokens: Any = None, **groups: Any) -> None:
    """Megatron's gradient reduction over replicas and tied embeddings, without its division by the token count."""
    finalize_model_grads(model, None, **groups)


_HEADS = {True: "it has one, which is not used", False: "it has none, so this run's starts from drafter.head.source"}


def _padded(batch: MicroBatch, hidden: dict[int, torch.Tensor]) -> torch.Tensor:
    """{row: [length, H]} -> [S, B, H]"""
    return torch.nn.utils.rnn.pad_sequence([hidden[row] for row in batch.rows])


def _not_finite(what: str, value: float, version: int) -> str:
    return (
        f"the {what} of update {version} is {value}; nothing was updated. Lower policy.lr, set policy.clip_grad, "
        "try policy.dtype=fp32, and look at the newest rollouts' log-probabilities and rewards"
    )
