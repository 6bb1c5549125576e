"""What a draft head's acceptance is worth where a decoding step is bound by memory, as on a GPU at few sequences.

    python benchmarks/draft_cost.py BENCH [BENCH ...] [--config CONFIG_JSON] [--vocabulary 4096]

BENCH: folders of `nemo-specrl bench bench.kind=rollouts` that hold arms with a draft head. Acceptance at each position
is taken from their measurements. A step then reads the whole model once, to decode one token or to verify k + 1, and
every draft reads the head's layer, its projection and its share of the LM head; so k drafts give

    (1 + a_1 + ... + a_k) / (1 + k * c),    c = weights that a draft reads / weights of the model

(a_i: the chance that the first i drafts are accepted). Attention's cache, launches and sampling are left out: an upper
bound, and a fair one for k and the vocabulary. Default model: Qwen3-14B's published shapes.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QWEN3_14B = {
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "intermediate_size": 17408,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}


def draft_share(config: Mapping[str, Any], vocabulary: int) -> float:
    """c: weights that one draft reads / weights that one decoding step reads. `vocabulary` = 0: the whole LM head."""
    h, vocab = config["hidden_size"], config["vocab_size"]
    d = config.get("head_dim") or h // config["num_attention_heads"]
    attention = h * d * 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    layer = attention + 3 * h * config["intermediate_size"]
    step = config["num_hidden_layers"] * layer + h * vocab
    return (layer + 2 * h * h + h * (vocabulary or vocab)) / step


def acceptance(folder: Path) -> dict[tuple[str, int], list[float]]:
    """(arm, slots) -> a_1 ... a_k, ratios of sums over the repetitions."""
    drafts: dict[tuple[str, int], float] = defaultdict(float)
    accepted: dict[tuple[str, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for line in (folder / "measurements.jsonl").read_text().splitlines():
        found = json.loads(line)
        values, key = found["values"], (found["arm"], found["slots"])
        if values.get("spec/drafts"):
            drafts[key] += values["spec/drafts"]
            for name, n in values.items():
                if name.startswith("spec/accepted_pos_"):
                    accepted[key][int(name.rsplit("_", 1)[1])] += n
    return {key: [accepted[key][i] / n for i in sorted(accepted[key])] for key, n in drafts.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bench", type=Path, nargs="+")
    parser.add_argument("--config", type=Path, help="a model's config.json; default: Qwen3-14B")
    parser.add_argument("--vocabulary", type=int, default=0, help="tokens that the head drafts; 0 = all")
    args = parser.parse_args()
    config = json.loads(args.config.read_text()) if args.config else QWEN3_14B
    share = draft_share(config, args.vocabulary)
    print(f"a draft reads {share:.1%} of what a decoding step reads\n")
    print("| arm | slots | accepted at least 1, 2, ... | k = 1, 2, ... |\n|---|---|---|---|")
    for folder in args.bench:
        for (arm, slots), a in acceptance(folder).items():
            gains = [(1 + sum(a[:k])) / (1 + k * share) for k in range(1, len(a) + 1)]
            print(f"| {arm} | {slots} | {', '.join(f'{x:.0%}' for x in a)} | {', '.join(f'{x:.2f}x' for x in gains)} |")


if __name__ == "__main__":
    main()
