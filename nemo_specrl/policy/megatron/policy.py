"""MegatronPolicy: the Policy protocol of `nemo_specrl.policy.base` on Megatron-core.

Every rank is given the same rows. Data-parallel replicas work on different rows; the last pipeline stage computes
losses and scores; every rank gets all results. Shapes: B rows, T response tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

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
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.policy.base import LossFn, Reducer, Row, Scores, TrainRow
from nemo_specrl.policy.megatron import batching, state
from nemo_specrl.policy.megatron.architecture import read_architecture
from nemo_specrl.policy.megatron.batching import MicroBatch
from nemo_specrl.policy.megatron.forward import POSITIONS, at_responses, run_pipeline, score_positions
from nemo_specrl.policy.megatron.law import Law, log_probs
from nemo_specrl.policy.megatron.loss import loss_batch, token_weights
from nemo_specrl.policy.megatron.model import DTYPES, build_model
from nemo_specrl.policy.megatron.optimizer import build_optimizer
from nemo_specrl.policy.megatron.parallel import init_parallel
from nemo_specrl.policy.megatron.schedule import LearningRate
from nemo_specrl.policy.megatron.weights import Checkpoint, export_weights, load_weights


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
        if config.dtype not in DTYPES:
            raise ValueError(f"policy.dtype={config.dtype!r} is unknown; known are {', '.join(DTYPES)}")
        folder = Path(model)
        self.config = config
        self.architecture = read_architecture(folder)
        checkpoint = Checkpoint(folder, self.architecture)
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
        load_weights(self._model, checkpoint, self.architecture, self.layout, DTYPES[config.dtype])
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
            return {
                row: [
                    reducer(row, k * POSITIONS, log_probs(self._model.logits(chunk), self.law))
                    for k, chunk in enumerate(torch.split(states, POSITIONS))
                ]
                for row, states in zip(batch.rows, by_row, strict=True)
            }

        with torch.no_grad():
            return self._results(rows, finish, [])

    def hidden_states(self, rows: Sequence[Row]) -> dict[int, torch.Tensor]:
        """{row: [P + T - 1, H] final-norm hidden states} of this replica's rows; empty but on the last stage."""

        def finish(batch: MicroBatch, hidden: torch.Tensor) -> dict[int, torch.Tensor]:
            return {row: hidden[: batching.length_of(rows[row]), k] for k, row in enumerate(batch.rows)}

        with torch.no_grad():
            return self._run(rows, finish)

    def update(self, rows: Sequence[TrainRow], loss_fn: LossFn, *, loss_level: str) -> dict[str, float]:
        """One optimizer update on one mini-batch.

        Returns `loss`, `grad_norm` (before clipping), `lr`, `skipped` (1 where no token was unmasked: nothing is
        updated, but the call counts), `outside_law_tokens` and the loss's own metrics.
        Raises RuntimeError when loss or gradients are not finite; parameters and optimizer are then untouched."""
        batching.check_rows(rows, self.vocab_size)
        weights = token_weights(rows, loss_level)
        lr = self._learning_rate(self._version)
        chosen = [i for i, w in enumerate(weights) if w.any()]
        if not chosen:
            self._version += 1
            return {"loss": 0.0, "grad_norm": 0.0, "lr": lr, "skipped": 1.0, "outside_law_tokens": 0.0}
        mine = batching.share(rows, chosen, self.layout.dp_rank, self.layout.dp)
        if not mine:
            # Every rank must run the schedule: one without rows takes any row, at weight 0.
            mine, weights = chosen[:1], [np.zeros_like(w) for w in weights]

        def finish(batch: MicroBatch, hidden: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            flat, _ = score_positions(self._model, at_responses(batch, hidden), batch.targets, self.law)
            logprobs, prepared, outside = loss_batch(rows, weights, batch, flat)
            loss, metrics = loss_fn(logprobs, prepared)
            return loss, {"loss": loss.detach(), "outside_law_tokens": outside, **metrics}

        self._ddp.zero_grad_buffer()
        batches = batching.micro_batches(rows, mine, self.config.micro_batch_tokens, self.layout.device)
        reports = run_pipeline(self._ddp, batches, finish, backward=True)
        summed = self._sum_reports(reports)
        if not math.isfinite(summed["loss"]):
            raise RuntimeError(_not_finite("loss", summed["loss"], self._version))
        norm = self._optimizer.step(lr)
        if not math.isfinite(norm):
            raise RuntimeError(_not_finite("gradient norm", norm, self._version))
        self._version += 1
        return {**summed, "grad_norm": norm, "lr": lr, "skipped": 0.0}

    def snapshot_reference(self) -> None:
        """Freeze a copy of the current weights for `score(..., reference=True)`. A checkpoint does not hold it:
        take it before `load`, when the policy still is the model that the run started from."""
        self._reference = [p.detach().clone() for p in self._model.parameters()]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face (name, tensor) pairs in `config.dtype`, complete on every rank. Collective: exhaust it on
        all ranks. A tensor may share the policy's memory, valid until the next update."""
        return export_weights(self._model, self.architecture, self.layout, DTYPES[self.config.dtype])

    def save(self, folder: Path) -> None:
        """Write this rank's share of model, optimizer and schedule into `folder` (which exists)."""
        content = {"version": self._version, "optimizer": self._optimizer.state_dict()}
        if self.layout.device.type == "cuda":
            content["model"] = [p.detach() for p in self._model.parameters()]
        state.write(folder, self.layout, self._about, content)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; ValueError when layout or model differ, or a file is missing or corrupt."""
        content = state.read(folder, self.layout, self._about)
        if "model" in content:
            with torch.no_grad():
                for parameter, saved in zip(self._model.parameters(), content["model"], strict=True):
                    parameter.copy_(saved)
        self._optimizer.load_state_dict(content["optimizer"])
        self._version = int(content["version"])
        self._learning_rate = LearningRate(self.config, self._total_updates)

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

    def _sum_reports(self, reports: list[dict[str, torch.Tensor]]) -> dict[str, float]:
        """Sums over micro-batches and replicas, on every rank."""
        mine: dict[str, float] = {}
        for report in reports if self.layout.reports else []:
            for key, value in report.items():
                mine[key] = mine.get(key, 0.0) + float(value)
        summed: dict[str, float] = {}
        for part in self.layout.gather(mine):
            for key, value in part.items():
                summed[key] = summed.get(key, 0.0) + value
        return summed


def _finalize(model: list[Any], _num_tokens: Any = None, **groups: Any) -> None:
    """Megatron's gradient reduction over replicas and tied embeddings, without its division by the token count."""
    finalize_model_grads(model, None, **groups)


def _not_finite(what: str, value: float, version: int) -> str:
    return (
        f"the {what} of update {version} is {value}; nothing was updated. Lower policy.lr, set policy.clip_grad, "
        "try policy.dtype=fp32, and look at the newest rollouts' log-probabilities and rewards"
    )
