"""Time of one drafting step: 256 active requests over 16 rollouts x 4,096 tokens of history each (issue 3: < 2 ms).

    python benchmarks/history_drafting.py [--rows 256] [--prompts 16] [--siblings 16] [--length 4096]

Each row continues a noisy copy of its siblings' text (`--noise` of the tokens replaced), accepts what matches and moves
on, as in a real decoding step: two or three of the proposed tokens hold, then comes a rejection. Prompts are 60 to 260
tokens long. Numbers are for one thread; the thread's own CPU time is printed beside the wall clock, because on a shared
machine the second measures the neighbours. `--cold` walks through 64 MiB between steps, as the model's forward would.

Written in: sorted contexts in flat numpy arrays, searched by numba-compiled loops without any per-request state. The
target leaves 7.8 microseconds a row, which is a handful of Python operations; numpy alone would need state per request
to avoid a search for each row. numba comes with vLLM. Most of the time is cache misses, so neighbours on the machine
show in the CPU time too.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.speculation.history import HistoryIndex
from nemo_specrl.speculation.history_draft import HistoryDrafter
from nemo_specrl.types import IntArray, Rollout, prompt_key

VOCAB = 3000


def noisy(rng: np.random.Generator, text: IntArray, noise: float) -> IntArray:
    """[T] the text with a share of its tokens replaced."""
    return np.where(rng.random(len(text)) < noise, rng.integers(0, VOCAB, len(text)), text).astype(np.int32)


def percentiles(seconds: list[float]) -> str:
    values = 1e3 * np.percentile(seconds, [0, 50, 95, 100])
    return "min {:6.3f}   median {:6.3f}   95 % {:6.3f}   max {:6.3f} ms".format(*values)


def main() -> None:
    """Build, draft, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in {"rows": 256, "prompts": 16, "siblings": 16, "length": 4096, "steps": 500, "k": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    rng = np.random.default_rng(0)

    prompts = [rng.integers(0, VOCAB, rng.integers(60, 260)).astype(np.int32) for _ in range(args.prompts)]
    texts = [rng.integers(0, VOCAB, args.length).astype(np.int32) for _ in range(args.prompts)]
    unused = np.zeros(args.length, np.float32), np.zeros(args.length, np.int32)
    index = HistoryIndex(window=1)
    built = []
    for prompt, text in zip(prompts, texts, strict=True):
        siblings = [
            Rollout(prompt_key(prompt), slot, prompt, noisy(rng, text, args.noise), *unused, "stop")
            for slot in range(args.siblings)
        ]
        start = time.thread_time()
        index.observe(siblings)
        built.append(time.thread_time() - start)
    start = time.thread_time()
    config = DrafterConfig("history", num_draft_tokens=args.k, max_active=2 * args.rows)
    drafter = HistoryDrafter(config, index)
    print(f"compiled in {time.thread_time() - start:.1f} s; {index.tokens} tokens, 8 bytes each")
    print(f"observe, one prompt   {percentiles(built)} (CPU)")

    tokens = np.zeros((args.rows, args.length + 512), np.int32)
    lengths = np.zeros(args.rows, np.int32)
    for row in range(args.rows):
        group = row * args.prompts // args.rows  # siblings are submitted together and lie side by side
        own = np.concatenate([prompts[group], noisy(rng, texts[group], args.noise)])
        tokens[row, : len(own)] = own
        lengths[row] = len(prompts[group]) + 1 + rng.integers(0, args.length // 2)
    fresh = np.ones(args.rows, np.int64)
    wall, cpu, drafted, accepted = [], [], 0, 0
    elsewhere = np.zeros(2**23)
    for _ in range(args.steps):
        if args.cold:
            elsewhere += 1.0
        before = time.perf_counter(), time.thread_time()
        drafts = drafter.propose(tokens, lengths, fresh)
        wall.append(time.perf_counter() - before[0])
        cpu.append(time.thread_time() - before[1])
        for row, draft in enumerate(drafts):
            ahead = tokens[row, lengths[row] : lengths[row] + len(draft)].tolist()
            held = next((i for i, (a, b) in enumerate(zip(draft, ahead, strict=True)) if a != b), len(draft))
            drafted, accepted = drafted + len(draft), accepted + held
            lengths[row] += held + 1
            fresh[row] = held + 1
        lengths = np.where(lengths > args.length - 8, 400, lengths).astype(np.int32)
    print(f"propose, {args.rows} rows  {percentiles(cpu)} (CPU)")
    print(f"propose, {args.rows} rows  {percentiles(wall)} (wall)")
    per_row = drafted / args.rows / args.steps
    print(f"{per_row:.2f} tokens drafted a row and step, {accepted / max(drafted, 1):.0%} of them right")


if __name__ == "__main__":
    main()
