"""What every rank of a torchrun launch does: the same work on any layout, results written by rank 0.

torchrun --nproc-per-node N -m tests.policy.megatron.ranks TP PP MODEL_FOLDER OUT.pt
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.contracts.rows import LossBatch, Row, Scores, TrainRow
from nemo_specrl.policy.megatron.policy import MegatronPolicy

LENGTHS = (3, 0, 9, 17, 1, 6)


def make_rows(seed: int = 0, vocab: int = 131, lengths: tuple[int, ...] = LENGTHS) -> list[Row]:
    """Two responses to each prompt."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, vocab, 2 + 3 * i).astype(np.int32) for i in range(-(-len(lengths) // 2))]
    return [Row(prompts[i // 2], draw.integers(0, vocab, n).astype(np.int32)) for i, n in enumerate(lengths)]


def train_rows(rows: list[Row], scores: list[Scores]) -> list[TrainRow]:
    """Alternating advantages; every third token masked."""
    return [
        TrainRow(
            r.prompt_ids,
            r.token_ids,
            s.logprobs,
            s.logprobs,
            np.full_like(s.logprobs, 1.0 if i % 2 else -0.5),
            (np.arange(len(s.logprobs)) % 3 != 1).astype(np.float32),
        )
        for i, (r, s) in enumerate(zip(rows, scores, strict=True))
    ]


def surrogate(logprobs: torch.Tensor, batch: LossBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ratio = (logprobs - batch.old_logprobs).exp()
    return -(batch.weights * batch.advantages * ratio).sum(), {"ratio": (batch.weights * ratio).sum().detach()}


def target_log_prob(rows: list[Row]) -> Any:
    """A reducer that reads the response tokens' log-probabilities out of the whole law."""

    def reducer(row: int, first: int, log_probs: torch.Tensor) -> Any:
        targets = torch.from_numpy(rows[row].token_ids[first : first + len(log_probs)].astype(np.int64))
        return log_probs.gather(1, targets[:, None])[:, 0].numpy()

    return reducer


def work(folder: str, tp: int, pp: int, sampling: SamplingConfig, checkpoint: Path | None = None) -> dict[str, Any]:
    """Scores, reductions, two updates, a checkpoint in between and the weights that come of them."""
    # With this epsilon AdamW moves a weight in proportion to its gradient, so comparing weights compares gradients.
    config = PolicyConfig(
        tensor_parallel=tp, pipeline_parallel=pp, dtype="fp32", lr=0.1, eps=1.0, micro_batch_tokens=48
    )
    policy = MegatronPolicy(folder, config, sampling, seed=0, total_updates=None)
    rows = make_rows()
    before = {name: tensor.clone() for name, tensor in policy.weights()}
    scores = policy.score(rows)
    parts = policy.reduce(rows, target_log_prob(rows))
    batch = train_rows(rows, scores)
    first = policy.update(batch, surrogate, loss_level="token")
    if checkpoint is not None:
        policy.save(checkpoint)
        torch.distributed.barrier()
    second = policy.update(batch, surrogate, loss_level="sequence")
    after = {name: tensor.clone() for name, tensor in policy.weights()}
    resumed = True
    if checkpoint is not None:
        policy.load(checkpoint)
        again = policy.update(batch, surrogate, loss_level="sequence")
        resumed = again == second and all(torch.equal(t, after[n]) for n, t in policy.weights())
    return {
        "scores": [s.logprobs for s in scores],
        "entropy": [s.entropy for s in scores],
        "reduced": [np.concatenate(p) if p else np.empty(0, np.float32) for p in parts],
        "updates": [first, second],
        "before": before,
        "after": after,
        "resumed": resumed,
        "agree": len({repr((first, second))}) == 1,
        "version": policy.version,
    }


def main() -> None:
    tp, pp, folder, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    checkpoint = out.with_suffix(".ckpt")
    checkpoint.mkdir(exist_ok=True)
    result = work(folder, tp, pp, SamplingConfig(temperature=0.8), checkpoint)
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, (result["updates"], result["scores"], result["resumed"]))
    result["agree"] = all(repr(other[:2]) == repr(everyone[0][:2]) for other in everyone)
    result["resumed"] = all(other[2] for other in everyone)
    if torch.distributed.get_rank() == 0:
        torch.save(result, out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
