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
from nemo_specrl.contracts.companion import Lesson
from nemo_specrl.contracts.rows import Row
from nemo_specrl.policy.megatron.policy import MegatronPolicy
from nemo_specrl.policy.mtp.companion import HeadCompanion
from tests.policy.megatron.ranks import make_rows, surrogate, train_rows

HEAD = HeadConfig(depth=3, lr=0.1, clip_grad=0.05)
SAMPLE_WEIGHTS = [1.0, 2.0, 0.5, 1.0, 0.0, 3.0]


LOSSES: dict[str, dict[str, Any]] = {
    "kl, lump": {"topk": 20},
    "acceptance": {"loss": "acceptance"},
    "acceptance, lump": {"loss": "acceptance", "topk": 20},
}


def with_a_head(policy: MegatronPolicy, head: HeadConfig | None) -> MegatronPolicy:
    """The policy, with a head that rides it."""
    if head is not None:
        policy.join(HeadCompanion(head, policy))
    return policy


def head_of(policy: MegatronPolicy) -> HeadCompanion:
    """The head that rides the policy."""
    (head,) = policy.companions
    assert isinstance(head, HeadCompanion)
    return head


def notices_a_nan(policy: MegatronPolicy, rows: list[Row]) -> bool:
    """Whether this rank, too, is told when the head, which lives on the last stage, has diverged."""
    for name, parameter in head_of(policy).head.parameters().items():
        if "linear_fc2" in name:
            parameter.data.fill_(float("nan"))
    try:
        head_of(policy).train(rows)
    except RuntimeError:
        return True
    return False


def copies(pairs: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in pairs}


def updates(policy: MegatronPolicy, weights: list[float] | None) -> list[dict[str, float]]:
    rows = make_rows()
    batch = train_rows(rows, policy.score(rows))
    lessons = [] if weights is None else [Lesson(head_of(policy), weights)]
    return [policy.update(batch, surrogate, loss_level="token", lessons=lessons) for _ in range(2)]


def work(folder: str, tp: int, pp: int, checkpoint: Path, head: HeadConfig = HEAD) -> dict[str, Any]:
    """Two policy updates with the head off and on; then lessons of the head alone, and a resume in between."""
    # With this epsilon AdamW moves a weight in proportion to its gradient, so comparing weights compares gradients.
    config = PolicyConfig(
        tensor_parallel=tp, pipeline_parallel=pp, dtype="fp32", lr=0.1, eps=1.0, micro_batch_tokens=48
    )
    sampling = SamplingConfig(temperature=0.8)

    def make(with_head: HeadConfig | None, sampling: SamplingConfig = sampling) -> MegatronPolicy:
        return with_a_head(MegatronPolicy(folder, config, sampling, seed=0, total_updates=None), with_head)

    off = make(None)
    plain = updates(off, None)
    on = make(head)
    before = copies(head_of(on).weights())
    taught = updates(on, SAMPLE_WEIGHTS)
    own = [{k: v for k, v in result.items() if not k.startswith("draft/")} for result in taught]
    theirs, ours = copies(off.weights()), copies(on.weights())
    isolated = own == plain and all(torch.equal(theirs[n], ours[n]) for n in theirs)
    started = make(head)
    head_of(started).start(make_rows())
    rows = make_rows(seed=1)
    on.save(checkpoint)
    torch.distributed.barrier()
    lesson = head_of(on).train(rows, states=head_of(on).states(rows))
    after = copies(head_of(on).weights())
    on.load(checkpoint)
    again = head_of(on).train(rows)
    resumed = again == lesson and all(torch.equal(t, after[n]) for n, t in head_of(on).weights())
    others, taught_by = [], {}
    for name, changes in LOSSES.items():
        learner = make(replace(head, **changes))
        others.append(head_of(learner).train(rows))
        taught_by[name] = copies(head_of(learner).weights())
    nucleus = make(head, replace(sampling, top_p=0.7))
    others.append(head_of(nucleus).train(rows))
    taught_by["nucleus"] = copies(head_of(nucleus).weights())
    return {
        "noticed": notices_a_nan(make(head), rows),
        "taught_by": taught_by,
        "isolated": isolated,
        "resumed": resumed,
        "before": before,
        "after": after,
        "started": copies(head_of(started).weights()),
        "metrics": [*({k: v for k, v in r.items() if k.startswith("draft/")} for r in taught), lesson, *others],
        "agreement": head_of(on).agreement(rows),
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
