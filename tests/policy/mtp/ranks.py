"""The same lessons on any layout, with the head on and off; results written by rank 0.

torchrun --nproc-per-node N -m tests.policy.mtp.ranks TP PP MODEL_FOLDER OUT.pt
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.config.head import HeadConfig
from nemo_specrl.config.policy import PolicyConfig
from nemo_specrl.policy.base import Row
from nemo_specrl.policy.megatron.policy import MegatronPolicy
from tests.policy.megatron.ranks import make_rows, surrogate, train_rows

HEAD = HeadConfig(depth=3, lr=0.1, clip_grad=0.05)
SAMPLE_WEIGHTS = [1.0, 2.0, 0.5, 1.0, 0.0, 3.0]


LOSSES: dict[str, dict[str, Any]] = {
    "kl, lump": {"topk": 20},
    "acceptance": {"loss": "acceptance"},
    "acceptance, lump": {"loss": "acceptance", "topk": 20},
}


def notices_a_nan(policy: MegatronPolicy, rows: list[Row]) -> bool:
    """Whether this rank, too, is told when the head, which lives on the last stage, has diverged."""
    assert policy.head is not None
    for name, parameter in policy.head.parameters().items():
        if "linear_fc2" in name:
            parameter.data.fill_(float("nan"))
    try:
        policy.train_head(rows)
    except RuntimeError:
        return True
    return False


def copies(pairs: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in pairs}


def updates(policy: MegatronPolicy, weights: list[float] | None) -> list[dict[str, float]]:
    rows = make_rows()
    batch = train_rows(rows, policy.score(rows))
    return [policy.update(batch, surrogate, loss_level="token", head_weights=weights) for _ in range(2)]


def work(folder: str, tp: int, pp: int, checkpoint: Path, head: HeadConfig = HEAD) -> dict[str, Any]:
    """Two policy updates with the head off and on; then lessons of the head alone, and a resume in between."""
    # With this epsilon AdamW moves a weight in proportion to its gradient, so comparing weights compares gradients.
    config = PolicyConfig(
        tensor_parallel=tp, pipeline_parallel=pp, dtype="fp32", lr=0.1, eps=1.0, micro_batch_tokens=48
    )
    sampling = SamplingConfig(temperature=0.8)

    def make(with_head: HeadConfig | None, sampling: SamplingConfig = sampling) -> MegatronPolicy:
        return MegatronPolicy(folder, config, sampling, seed=0, total_updates=None, head=with_head)

    off = make(None)
    plain = updates(off, None)
    on = make(head)
    before = copies(on.draft_weights())
    taught = updates(on, SAMPLE_WEIGHTS)
    own = [{k: v for k, v in result.items() if not k.startswith("draft/")} for result in taught]
    theirs, ours = copies(off.weights()), copies(on.weights())
    isolated = own == plain and all(torch.equal(theirs[n], ours[n]) for n in theirs)
    started = make(head)
    started.start_head(make_rows())
    rows = make_rows(seed=1)
    on.save(checkpoint)
    torch.distributed.barrier()
    lesson = on.train_head(rows, states=on.head_states(rows))
    after = copies(on.draft_weights())
    on.load(checkpoint)
    again = on.train_head(rows)
    resumed = again == lesson and all(torch.equal(t, after[n]) for n, t in on.draft_weights())
    others, taught_by = [], {}
    for name, changes in LOSSES.items():
        learner = make(replace(head, **changes))
        others.append(learner.train_head(rows))
        taught_by[name] = copies(learner.draft_weights())
    nucleus = make(head, replace(sampling, top_p=0.7))
    others.append(nucleus.train_head(rows))
    taught_by["nucleus"] = copies(nucleus.draft_weights())
    return {
        "noticed": notices_a_nan(make(head), rows),
        "taught_by": taught_by,
        "isolated": isolated,
        "resumed": resumed,
        "before": before,
        "after": after,
        "started": copies(started.draft_weights()),
        "metrics": [*({k: v for k, v in r.items() if k.startswith("draft/")} for r in taught), lesson, *others],
        "agreement": on.head_agreement(rows),
    }


def main() -> None:
    tp, pp, folder, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    checkpoint = out.with_suffix(".ckpt")
    checkpoint.mkdir(exist_ok=True)
    result = work(folder, tp, pp, checkpoint)
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    mine = (result["isolated"], result["resumed"], result["noticed"], repr((result["metrics"], result["agreement"])))
    torch.distributed.all_gather_object(everyone, mine)
    result["isolated"] = all(other[0] for other in everyone)
    result["resumed"] = all(other[1] for other in everyone)
    result["noticed"] = all(other[2] for other in everyone)
    result["agree"] = len({other[3] for other in everyone}) == 1
    if torch.distributed.get_rank() == 0:
        torch.save(result, out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
