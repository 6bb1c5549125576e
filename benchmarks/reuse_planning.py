"""How long reuse planning takes: lookup, acceptance, splice and assembly, without the policy's forward pass.

    python benchmarks/reuse_planning.py [--rollouts 1024] [--tokens 4096] [--k 20] [--vocab 64] [--rule exact]
        [--drift 0.0] [--chunk 512]

Synthetic log-probs stand for the forward pass. Times are CPU times of one process; data-parallel ranks share the
rollouts. What reads the whole vocabulary (`speculation.vocabulary`: entropy, the new candidates, the gather from the
laws) runs on the policy's device and grows with V: it is timed where it is called, told as `vocabulary`, and left out
of `planning`. `--k 0` stores no candidates: `lenient` without correction. `--drift` disturbs the policy's logits, so
that drafts are rejected; drawing a replacement reads one law [V] on the host and is told as `replace`, for which
`--vocab 151936 --tokens 64` is a realistic size. `one_percent_step_s` is the step time of which planning is 1 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from nemo_specrl.speculation import vocabulary
from nemo_specrl.speculation.acceptance import make_rule
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.speculation.prefix_reuse import ReuseStats, assemble, splice
from nemo_specrl.speculation.verifier import Draft, Verifier
from nemo_specrl.types import Rollout, TopK

VOCABULARY = ("at", "entropy", "top", "top_of_law")


class Clock:
    """CPU seconds by part; a part inside another one is taken off it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._inner = 0.0

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, whose time is added to `part`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            since = time.process_time()
            result = function(*args, **kwargs)
            took = time.process_time() - since
            self.spent[part] = self.spent.get(part, 0.0) + took - self._inner
            self._inner = outer + took
            return result

        return call


def synthetic(rng: np.random.Generator, tokens: int, vocab: int) -> torch.Tensor:
    """[T, V] logits of a peaked law."""
    return torch.as_tensor(rng.standard_normal((tokens, vocab), dtype=np.float32)) * 4.0


def candidates(laws: torch.Tensor, k: int) -> TopK:
    """The k likeliest tokens of each law."""
    values, ids = laws.topk(k, dim=-1)
    return TopK(ids.numpy().astype(np.int32), values.numpy())


def fill(cache: RolloutCache, laws: torch.Tensor, rollouts: int, k: int, rng: np.random.Generator) -> None:
    """`rollouts` slots of one prompt, drawn from the likeliest 20 tokens of each law, in epoch 0."""
    top = candidates(laws, max(k, 20))
    probs = np.exp(top.logprobs.astype(float))
    shares = np.cumsum(probs / probs.sum(1, keepdims=True), axis=1)
    rows = np.arange(len(laws))
    for slot in range(rollouts):
        picks = np.minimum((shares < rng.random((len(laws), 1))).sum(1), top.ids.shape[1] - 1)
        stored = TopK(top.ids[:, :k].copy(), top.logprobs[:, :k].copy()) if k else None
        prompt, versions = np.arange(100, dtype=np.int32), np.zeros(len(laws), np.int32)
        ids, logprobs = top.ids[rows, picks], top.logprobs[rows, picks]
        cache.put(Rollout("prompt", slot, prompt, ids, logprobs, versions, "length", topk=stored), 0)


def measure(
    rollouts: int, tokens: int, k: int, vocab: int, rule_name: str, *, drift: float = 0.0, chunk: int = 512
) -> dict[str, float]:
    """CPU milliseconds of each part and the cache's MiB for `rollouts` drafts of `tokens` tokens."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    logits, cache, rule, clock = (
        synthetic(rng, tokens, vocab),
        RolloutCache(1 << 40),
        make_rule(rule_name, 0.5),
        Clock(),
    )
    fill(cache, torch.log_softmax(logits, -1), rollouts, k, rng)
    logits += torch.as_tensor(rng.standard_normal(logits.shape, dtype=np.float32)) * drift
    laws = torch.log_softmax(logits, -1)
    parts = {name: clock.timed("vocabulary", getattr(vocabulary, name)) for name in VOCABULARY}

    def lookup(slot: int) -> Draft:
        source = cache.lookup("prompt", slot, 1)
        assert source is not None
        draft = Draft.of(source, limit=tokens, vocab_size=vocab)
        assert draft is not None
        return draft

    def finish(row: int, reduced: list[Any]) -> ReuseStats:
        (verified,) = one.collect([reduced])
        plan = splice(rule, drafts[row], verified, limit=tokens, eos_ids={-2}, version=1)
        if not plan.finished:  # the engine's turn
            return ReuseStats(reused_tokens=plan.kept, replaced_tokens=int(verified.replacement is not None))
        return ReuseStats.of(drafts[row], verified, assemble(plan, None, version=1), plan)

    look, end = clock.timed("lookup", lookup), clock.timed("splice", finish)
    with (
        mock.patch.multiple(vocabulary, **parts),
        mock.patch.object(Verifier, "_replace", clock.timed("replace", Verifier._replace)),
    ):
        drafts = [look(slot) for slot in range(rollouts)]
        verifier, one = (Verifier(rule, ds, seed=0, step=1, topk=k) for ds in (drafts, drafts[:1]))
        verify, stats = clock.timed("verify", verifier), ReuseStats()
        for row in range(rollouts):
            reduced = [verify(row, start, laws[start : start + chunk]) for start in range(0, tokens, chunk)]
            stats = stats + end(row, reduced)
    apart = ("vocabulary", "replace")
    planning = sum(seconds for part, seconds in clock.spent.items() if part not in apart)
    replaced = stats.replaced_tokens
    return {
        "rollouts": rollouts,
        "tokens": tokens,
        "kept_tokens": stats.reused_tokens,
        "replaced_tokens": replaced,
        "planning_ms": 1e3 * planning,
        **{f"{part}_ms": 1e3 * seconds for part, seconds in sorted(clock.spent.items())},
        "planning_us_per_token": 1e6 * planning / (rollouts * tokens),
        "vocabulary_us_per_token": 1e6 * clock.spent["vocabulary"] / (rollouts * tokens),
        **({"replace_us_each": 1e6 * clock.spent["replace"] / replaced} if replaced else {}),
        "one_percent_step_s": 100 * planning,
        "cache_mib": cache.bytes / 2**20,
        "bytes_per_token": cache.bytes / (rollouts * tokens),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=64)
    parser.add_argument("--rule", default="exact")
    parser.add_argument("--drift", type=float, default=0.0)
    parser.add_argument("--chunk", type=int, default=512)
    a = parser.parse_args()
    measured = measure(a.rollouts, a.tokens, a.k, a.vocab, a.rule, drift=a.drift, chunk=a.chunk)
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
