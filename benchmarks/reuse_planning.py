"""How long reuse planning takes: lookup, acceptance, splice and assembly, without the policy's forward pass.

    python benchmarks/reuse_planning.py [--rollouts 1024] [--tokens 4096] [--k 20] [--vocab 64] [--rule exact]

Synthetic log-probs stand for the forward pass. What reads the whole vocabulary (entropy, the new candidates) runs on
the policy's device and grows with V; it is run once more, timed as `vocabulary` and taken off `verify`. The rest does
not depend on V. Times are CPU times of one process; data-parallel ranks share the rollouts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from nemo_specrl.speculation.acceptance import make_rule
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.speculation.prefix_reuse import ReuseStats, assemble, splice
from nemo_specrl.speculation.verifier import Draft, Verifier
from nemo_specrl.types import Rollout, TopK


def synthetic(rng: np.random.Generator, tokens: int, k: int, vocab: int) -> tuple[torch.Tensor, TopK]:
    """([T, V] log-probs of a peaked law, its top k)."""
    logits = torch.as_tensor(rng.normal(scale=4.0, size=(tokens, vocab)), dtype=torch.float32)
    laws = torch.log_softmax(logits, -1)
    values, ids = laws.topk(k, dim=-1)
    return laws, TopK(ids.numpy().astype(np.int32), values.numpy())


def measure(rollouts: int, tokens: int, k: int, vocab: int, rule_name: str, chunk: int = 1024) -> dict[str, float]:
    """CPU seconds of each part and the cache's MiB for `rollouts` drafts of `tokens` tokens."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    laws, topk = synthetic(rng, tokens, k, vocab)
    cache = RolloutCache(1 << 40)
    ids = np.array([rng.choice(topk.ids[i], p=_law(topk, i)) for i in range(tokens)], dtype=np.int32)
    for slot in range(rollouts):
        cache.put(
            Rollout(
                "prompt",
                slot,
                np.arange(100, dtype=np.int32),
                ids.copy(),
                laws.numpy()[np.arange(tokens), ids],
                np.zeros(tokens, np.int32),
                "length",
                topk=TopK(topk.ids.copy(), topk.logprobs.copy()),
            ),
            0,
        )
    rule, spent = make_rule(rule_name), dict.fromkeys(("lookup", "verify", "splice", "vocabulary"), 0.0)

    def timed(part: str, since: float) -> float:
        now = time.process_time()
        spent[part] += now - since
        return now

    clock = time.process_time()
    drafts = []
    for slot in range(rollouts):
        source = cache.lookup("prompt", slot, 1)
        assert source is not None
        draft = Draft.of(source, limit=tokens, vocab_size=vocab)
        assert draft is not None
        drafts.append(draft)
    clock = timed("lookup", clock)
    verifier = Verifier(rule, drafts, seed=0, step=1, topk=k)
    stats = ReuseStats()
    for row in range(rollouts):
        clock = time.process_time()
        parts = [verifier(row, start, laws[start : start + chunk]) for start in range(0, tokens, chunk)]
        clock = timed("verify", clock)
        for start in range(0, tokens, chunk):
            torch.special.entr(laws[start : start + chunk].exp()).sum(-1)
            laws[start : start + chunk].topk(k, dim=-1)
        again = timed("vocabulary", clock)
        spent["verify"] -= again - clock
        clock = time.process_time()
        (verified,) = Verifier(rule, [drafts[row]], seed=0, step=1, topk=k).collect([parts])
        plan = splice(rule, drafts[row], verified, limit=tokens, eos_ids={-2}, version=1)
        if plan.finished:
            stats = stats + ReuseStats.of(drafts[row], verified, assemble(plan, None, version=1), plan)
        timed("splice", clock)
    planning = spent["lookup"] + spent["verify"] + spent["splice"]
    return {
        "rollouts": rollouts,
        "tokens": tokens,
        "kept_tokens": stats.reused_tokens,
        "planning_ms": 1e3 * planning,
        **{f"{part}_ms": 1e3 * seconds for part, seconds in spent.items()},
        "planning_us_per_token": 1e6 * planning / (rollouts * tokens),
        "cache_mib": cache.bytes / 2**20,
        "bytes_per_token": cache.bytes / (rollouts * tokens),
    }


def _law(topk: TopK, i: int) -> np.ndarray:
    probs = np.exp(topk.logprobs[i].astype(float))
    return np.asarray(probs / probs.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=64)
    parser.add_argument("--rule", default="exact")
    args = parser.parse_args()
    print(json.dumps(measure(args.rollouts, args.tokens, args.k, args.vocab, args.rule), indent=2))


if __name__ == "__main__":
    main()
