"""A policy and an engine over a handful of tokens: Markov chains, exact, in microseconds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from nemo_specrl.config.run import RunConfig
from nemo_specrl.contracts.engine import Completion, Engine, GenerationRequest, SpecCounters
from nemo_specrl.contracts.rows import Reducer, Row, Scores
from nemo_specrl.rollout.generator import RolloutGenerator
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.training.factories import make_generator, make_reuse
from nemo_specrl.types import FloatArray, IntArray, Rollout, TopK


class ToyPolicy:
    """p(next | last) = table[last]; also an engine that samples from it."""

    def __init__(self, table: np.ndarray, eos: int, version: int = 0, topk: int | None = None) -> None:
        self.table = np.asarray(table, dtype=np.float64)
        self.eos, self._version = eos, version
        self.asked: list[GenerationRequest] = []

    @property
    def version(self) -> int:
        return self._version

    @property
    def vocab_size(self) -> int:
        return len(self.table)

    def logprobs(self, prompt: IntArray, response: IntArray) -> np.ndarray:
        """[T, V]"""
        last = np.concatenate([prompt[-1:], response[:-1]]) if len(response) else response
        with np.errstate(divide="ignore"):
            return np.log(self.table[last])

    companions = ()

    def update(self, rows: Any, loss_fn: Any, *, loss_level: str, lessons: Any = ()) -> dict[str, float]:
        raise AssertionError("nothing is learnt here")

    def snapshot_reference(self) -> None:
        return None

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def save(self, folder: Path) -> None:
        return None

    def load(self, folder: Path) -> None:
        return None

    def score(self, rows: Sequence[Row], *, reference: bool = False) -> list[Scores]:
        out = []
        for row in rows:
            law = self.logprobs(row.prompt_ids, row.token_ids)
            picked = law[np.arange(len(law)), row.token_ids]
            entropy = -(np.exp(law) * np.where(np.isfinite(law), law, 0)).sum(1)
            out.append(Scores(picked.astype(np.float32), entropy.astype(np.float32)))
        return out

    def reduce(self, rows: Sequence[Row], reducer: Reducer, chunk: int = 2) -> list[list[Any]]:
        out = []
        for i, row in enumerate(rows):
            law = torch.tensor(self.logprobs(row.prompt_ids, row.token_ids))
            out.append([reducer(i, at, law[at : at + chunk]) for at in range(0, len(law), chunk)])
        return out


class ToyEngine(ToyPolicy):
    """Samples from the table, one generator per request's seed."""

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        topk: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        self.asked += requests
        return [self._complete(request, topk) for request in requests]

    def _complete(self, request: GenerationRequest, topk: int) -> Completion:
        rng = np.random.default_rng(request.seed)
        last = int(np.concatenate([request.prompt_ids, request.prefix_ids])[-1])
        tokens: list[int] = []
        laws: list[np.ndarray] = []
        while len(tokens) < request.max_tokens and (not tokens or tokens[-1] != self.eos):
            laws.append(self.table[last])
            last = int(rng.choice(len(self.table), p=laws[-1]))
            tokens.append(last)
        ids = np.array(tokens, np.int32)
        with np.errstate(divide="ignore"):
            law = np.log(np.array(laws))
        order = np.argsort(-law, axis=1)[:, :topk]
        top = TopK(order.astype(np.int32), np.take_along_axis(law, order, 1).astype(np.float32)) if topk else None
        picked = law[np.arange(len(ids)), ids].astype(np.float32)
        return Completion(ids, picked, "stop" if tokens[-1] == self.eos else "length", top)

    def score(self, rows: Sequence[tuple[IntArray, IntArray]]) -> list[FloatArray]:  # type: ignore[override]
        return [s.logprobs for s in ToyPolicy.score(self, [Row(*row) for row in rows])]

    def refit(self, weights: Iterable[Any], version: int, extras: Mapping[str, IntArray] | None = None) -> None:
        self._version = version

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        return None

    def close(self) -> None:
        return None

    def counters(self) -> SpecCounters:
        return SpecCounters()


def toy_generator(run: RunConfig, policy: ToyPolicy, engine: Engine, cache: RolloutCache) -> RolloutGenerator:
    """The generator that a run over these would have."""
    model: Any = SimpleNamespace(eos_token_ids=(policy.eos,), vocab_size=policy.vocab_size)
    return make_generator(run, policy, engine, make_reuse(run, model, cache))


def random_table(seed: int, vocab: int = 4, sharpness: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(vocab, 1.0 / sharpness), vocab)
