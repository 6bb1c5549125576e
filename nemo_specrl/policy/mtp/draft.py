"""The draft head as the policy holds it: network, optimizer and gradients of its own, beside the policy's graph.

Hidden states, embeddings and the LM head come in without gradient and the head's backward pass is its own, so the
policy's gradients are bit for bit what they are without a head. As MiMo's in vLLM, the head reads the policy's hidden
states *before* the final norm; a hook on that norm keeps those of the micro-batch that was forwarded last.
Every rank holds a `DraftHead`; the network lives on the last pipeline stage.

Shapes: S positions, B rows, H hidden, N response tokens, U distinct token ids.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from nemo_specrl.config.head import HeadConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.contracts.companion import Forward
from nemo_specrl.contracts.rows import Tokens
from nemo_specrl.models.architecture import Architecture
from nemo_specrl.policy.megatron import batching
from nemo_specrl.policy.megatron.law import Law
from nemo_specrl.policy.megatron.model import DTYPES, PolicyModel
from nemo_specrl.policy.megatron.optimizer import MasterAdamW
from nemo_specrl.policy.megatron.parallel import ParallelLayout
from nemo_specrl.policy.megatron.weights import load_weights
from nemo_specrl.policy.mtp.events import Events
from nemo_specrl.policy.mtp.head import MtpHead
from nemo_specrl.policy.mtp.loss import agreement, distil
from nemo_specrl.policy.mtp.start import LeastSquares
from nemo_specrl.policy.mtp.weights import head_slots, reader
from nemo_specrl.types import FloatArray

log = logging.getLogger(__name__)
DIVERGED = "Lower drafter.head.lr, set drafter.head.clip_grad, or try policy.dtype=fp32"
"""What to do about it."""
_AGREED = ("agreement", "greedy_agreement", "top1")


class DraftHead:
    """Trains and compares the head inside whatever forward pass the policy makes."""

    def __init__(
        self,
        config: HeadConfig,
        policy: PolicyConfig,
        architecture: Architecture,
        layout: ParallelLayout,
        model: PolicyModel,
        law: Law,
        folder: Path,
    ) -> None:
        """`folder`: the policy's model. Raises ValueError when `config.source` holds no head that fits."""
        self.config, self.law, self.layout = config, law, layout
        self._model = model
        read = reader(config.source, folder, architecture)
        self.hidden_size = architecture.hidden_size
        self.network: MtpHead | None = None
        self._optimizer: MasterAdamW | None = None
        if layout.last_stage:
            self.network = MtpHead(architecture, policy, layout)
            load_weights(
                self.parameters(), head_slots(architecture, layout.pp), read, architecture, layout, DTYPES[policy.dtype]
            )
            self._optimizer = MasterAdamW(
                self.network.parameters(),
                replace(policy, lr=config.lr, clip_grad=config.clip_grad, weight_decay=0.0),
                parallel_state.get_tensor_model_parallel_group(),
            )
            model.decoder.final_layernorm.register_forward_pre_hook(self._keep)
        self._ids = np.zeros(0, dtype=np.int64)
        self._table = torch.zeros(0)
        self._last: torch.Tensor | None = None
        self.last_input: torch.Tensor | None = None
        """What entered the policy's last layer, while `watching`."""
        self.fresh = config.source == "scratch"
        """From scratch and without its closed-form start so far (`Start`)."""

    def parameters(self) -> dict[str, torch.Tensor]:
        """This rank's parameters by name; none but on the last stage."""
        return {} if self.network is None else dict(self.network.named_parameters())

    def ride(
        self,
        rows: Sequence[Tokens],
        masks: Sequence[FloatArray],
        weights: Sequence[float],
        mine: Sequence[int],
        idle: bool,
    ) -> HeadRide:
        """One update on a mini-batch: `mine` of its rows are this replica's; `idle` = they count nothing here.
        `masks` [T] and `weights` are those of all rows. Collective."""
        events = Events.of(masks, weights, self.config.depth, self.config.depth_decay)
        self.prepare(rows, mine)
        if self.network is not None:
            self.network.zero_grad()  # an update that failed half-way leaves gradients behind
        return HeadRide(self, events, events.idle() if idle else events)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps what enters the policy's last layer in the forward passes made inside, for `Start`."""
        last = self._model.decoder.layers[-1] if self.network is not None else None
        hook = last.register_forward_pre_hook(self._keep_input, with_kwargs=True) if last is not None else None
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()
            self.last_input = None

    def _keep_input(self, _layer: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.last_input = (inputs[0] if inputs else named["hidden_states"]).detach()

    def _keep(self, _norm: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        self._last = inputs[0].detach()

    def states(self, batch: Forward) -> torch.Tensor:
        """[S, B, H] the policy's hidden states before the final norm, of the micro-batch just forwarded."""
        assert self._last is not None, "a forward pass comes first"
        last, self._last = self._last, None
        return _padded(last, batch)

    def prepare(self, rows: Sequence[Tokens], chosen: Sequence[int]) -> None:
        """Fetch the embeddings of the chosen rows' tokens. Collective over the pipeline's stages: the first holds the
        embedding, the last needs it, and the distinct tokens of a mini-batch are far fewer than the vocabulary."""
        self._ids = np.unique(np.concatenate([x for i in chosen for x in (rows[i].prompt_ids, rows[i].token_ids)]))
        with torch.no_grad():
            if self.layout.first_stage:
                ids = torch.from_numpy(self._ids.astype(np.int64)).to(self.layout.device)
                self._table = self._model.embedding.word_embeddings(ids[None])[0].contiguous()
            else:
                shape = (len(self._ids), self._model.config.hidden_size)
                self._table = torch.empty(shape, dtype=self._model.config.params_dtype, device=self.layout.device)
            if self.layout.pp > 1:
                group = parallel_state.get_pipeline_model_parallel_group()
                dist.broadcast(self._table, dist.get_global_rank(group, 0), group=group)

    def accumulate(self, batch: Forward, states: torch.Tensor, events: Events) -> dict[str, torch.Tensor]:
        """Add the gradients of one micro-batch of `states` [S, B, H]. Returns weighted sums for `HeadRide.end`."""
        weights = events.flat(batch)
        with torch.enable_grad():
            results = [
                distil(student, teacher, self._lm_head, weight, self.law, self.config.topk, self.config.loss)
                for student, teacher, weight in self._pairs(batch, states, weights)
            ]
            torch.stack([loss for loss, _ in results]).sum().backward()  # type: ignore[no-untyped-call]
        sums: dict[str, torch.Tensor] = {}
        for d, (loss, agreed) in enumerate(results, start=1):
            sums |= {f"draft/loss_{d}": loss.detach(), **_agreement_sums(agreed, d)}
        return sums

    def compare(self, batch: Forward, states: torch.Tensor, masks: Sequence[FloatArray]) -> dict[str, torch.Tensor]:
        """Sums over events of one micro-batch for `agreement_report`."""
        weights = Events.of(masks, None, self.config.depth, 1.0).flat(batch)
        sums: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for d, (student, teacher, _) in enumerate(self._pairs(batch, states, weights), start=1):
                sums |= _agreement_sums(agreement(student, teacher, self._lm_head, self.law), d)
        return sums

    def step(self, lr: float) -> float:
        """Reduce gradients over replicas and update; returns the gradient norm before clipping (0 but on the last
        stage). Where it is not finite nothing is touched, as with the policy's optimizer."""
        if self.network is None or self._optimizer is None:
            return 0.0
        tp, dp = parallel_state.get_tensor_model_parallel_group(), parallel_state.get_data_parallel_group()
        for name, parameter in self.network.named_parameters():
            grad = (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).float()
            parameter.grad = None
            # q/k norms act on this rank's heads only; every other replicated parameter sees the whole gradient.
            if self.layout.tp > 1 and name.endswith(("q_layernorm.weight", "k_layernorm.weight")):
                dist.all_reduce(grad, group=tp)
            if self.layout.dp > 1:
                dist.all_reduce(grad, group=dp)
            parameter.main_grad = grad  # type: ignore[attr-defined]
        norm = self._optimizer.step(lr)
        for parameter in self.network.parameters():
            del parameter.main_grad  # type: ignore[attr-defined]
        return norm

    def embedded(self, batch: Forward) -> torch.Tensor:
        """[S, B, H] embeddings of the micro-batch's tokens, from what `prepare` fetched."""
        where = np.searchsorted(self._ids, batch.input_ids.cpu().numpy()).clip(max=len(self._ids) - 1)
        return self._table[torch.from_numpy(where).to(self._table.device)].transpose(0, 1)

    def state_dict(self) -> dict[str, Any] | None:
        """Of this rank: parameters and optimizer; None but on the last stage."""
        if self.network is None or self._optimizer is None:
            return None
        return {
            "parameters": {name: p.detach() for name, p in self.network.named_parameters()},
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """What `state_dict` gave on the rank that stood here."""
        if self.network is None or self._optimizer is None:
            return
        assert state is not None, "the last stage's state holds the head"
        self.network.load_state_dict(state["parameters"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        self.fresh = False

    def project(self, weight: torch.Tensor) -> None:
        """Set the projection to `weight` [H, 2H], of which this rank holds some rows."""
        assert self.network is not None
        assert self._optimizer is not None
        own = self.network.input_proj.weight
        first = self.layout.tp_rank * len(own)
        own.data.copy_(weight[first : first + len(own)])
        self._optimizer.reload()

    @property
    def _lm_head(self) -> torch.Tensor:
        """[V / tp (padded), H]"""
        tied = self._model.share_embeddings_and_output_weights
        weight = self._model.shared_embedding_or_output_weight() if tied else self._model.output_layer.weight
        return weight.detach()  # type: ignore[no-any-return]

    def _pairs(
        self, batch: Forward, states: torch.Tensor, weights: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """For each depth: the head's and the policy's final-norm hidden states at the events with a weight, and the
        weights."""
        assert self.network is not None
        flat, pairs = states.flatten(0, 1), []
        for d, output in enumerate(self.network(self.embedded(batch), states, len(weights)), start=1):
            counted = weights[d - 1] > 0
            student, teacher = _positions(batch, counted, d)
            with torch.no_grad():
                normed = self._model.decoder.final_layernorm(flat[teacher])
            pairs.append((output.flatten(0, 1)[student], normed, weights[d - 1][counted]))
        self._last = None
        return pairs


class Start:
    """A ride that gives a fresh head its closed-form start (start.py), inside `DraftHead.watching`."""

    def __init__(self, head: DraftHead, masks: Sequence[FloatArray]) -> None:
        """`masks` [T] of all rows."""
        self._head, self._masks = head, masks
        self._map = LeastSquares(head.hidden_size, head.layout.device) if head.network is not None else None

    def after_forward(self, batch: Forward, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take in the policy's forward pass of this micro-batch."""
        head = self._head
        assert self._map is not None
        assert head.last_input is not None
        assert head.network is not None
        counted = Events.of(self._masks, None, 1, 1.0).flat(batch)[0] > 0
        student, teacher = _positions(batch, counted, 1)
        normed = head.network.hidden_layernorm(head.states(batch).flatten(0, 1)[student])
        token = head.network.token_layernorm(head.embedded(batch).flatten(0, 1)[teacher])
        self._map.add(torch.cat([normed, token], dim=-1), _padded(head.last_input, batch).flatten(0, 1)[teacher])
        return {}

    def end(self, sums: dict[str, float]) -> dict[str, float]:
        """Solve and set the projection. Collective."""
        self._head.fresh = False
        if self._map is None:
            return {}
        weight, n = self._map.solve(parallel_state.get_data_parallel_group() if self._head.layout.dp > 1 else None)
        if n:
            self._head.project(weight)
        log.info("draft head: projection fitted to %d positions", n)
        return {}


@dataclass(frozen=True)
class HeadRide:
    """One update of the head: `after_forward` of each micro-batch (or `learn` from states at hand), then `end`."""

    head: DraftHead
    events: Events
    """Of the whole mini-batch."""
    mine: Events
    """The same, or at weight 0 where this replica has no rows."""
    lr: float | None = None
    """drafter.head.lr by default."""

    def after_forward(self, batch: Forward, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        """Learn from the policy's forward pass of this micro-batch, which has just been made."""
        return self.learn(batch, self.head.states(batch))

    def learn(self, batch: Forward, states: torch.Tensor) -> dict[str, torch.Tensor]:
        """See `DraftHead.accumulate`."""
        return self.head.accumulate(batch, states, self.mine)

    def end(self, sums: dict[str, float]) -> dict[str, float]:
        """Update the head; `sums` over all micro-batches and replicas lose what is the head's. Collective.

        Returns, on every rank, what `agreement_report` says of the head before this update, `draft/loss` (the weighted
        mean of drafter.head.loss, nats), `draft/loss_pos_i` (the mean at draft position i), `draft/grad_norm` (before
        clipping) and `draft/events`; only the last where nothing counted.
        Where the gradients are not finite the head stays as it is, and only `draft/events` and `draft/skipped` = 1 are
        returned: by then the policy has moved, and its training need not end for a drafter's sake."""
        shares = self.events.shares
        own = {key: sums.pop(key) for key in list(sums) if key.startswith("draft/")}
        parts = [own.get(f"draft/loss_{d}", 0.0) for d in range(1, len(shares) + 1)]
        if self.events.count == 0:
            return {"draft/events": 0.0}
        norms = self.head.layout.gather(self.head.step(self.head.config.lr if self.lr is None else self.lr))
        if not all(map(math.isfinite, norms)):  # max() would pass over a NaN behind the zeros of earlier stages
            log.warning("the draft head's gradient is not finite: it was not updated. %s", DIVERGED)
            return {"draft/events": float(self.events.count), "draft/skipped": 1.0}
        norm = max(norms)
        metrics = {"draft/loss": sum(parts), "draft/grad_norm": norm, "draft/events": float(self.events.count)}
        metrics |= agreement_report(own, len(shares))
        by_position = enumerate(zip(parts, shares, strict=True))
        return metrics | {f"draft/loss_pos_{i}": part / float(share) for i, (part, share) in by_position if share > 0}


def _positions(batch: Forward, counted: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where in flattened [S, B] states the head starts for the counted events, and where the policy's own law of the
    same token is made, `depth` positions later."""
    teacher = batch.select[counted]
    return teacher - depth * len(batch.rows), teacher


def _padded(states: torch.Tensor, batch: Forward) -> torch.Tensor:
    """States as the policy computed them, packed or padded -> [S, B, H]."""
    padded = states.shape[1] == len(batch.rows) and states.shape[0] == batch.input_ids.shape[1]
    return states if padded else batching.unpack(states, batch.cells)


def _agreement_sums(agreed: torch.Tensor, depth: int) -> dict[str, torch.Tensor]:
    """[N, 3] of one depth -> sums for `agreement_report`."""
    total = dict(zip(_AGREED, agreed.sum(dim=0), strict=True))
    return {f"draft/{what}_{depth}": x for what, x in total.items()} | {
        f"draft/n_{depth}": torch.tensor(float(len(agreed)))
    }


def agreement_report(sums: dict[str, float], depth: int) -> dict[str, float]:
    """Metrics of a comparison on realised tokens, by draft position i: `draft/agreement_pos_i` (expected acceptance of
    a sampled draft), `draft/greedy_agreement_pos_i` (of the likeliest token), `draft/top1_pos_i`."""
    metrics: dict[str, float] = {}
    for d in range(1, depth + 1):
        n = sums.get(f"draft/n_{d}", 0.0)
        if n > 0:
            metrics |= {f"draft/{what}_pos_{d - 1}": sums[f"draft/{what}_{d}"] / n for what in _AGREED}
    return metrics
