"""Scored samples -> the rows of an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nemo_specrl.algorithms.advantages import group_advantages
from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.contracts.rows import TrainRow
from nemo_specrl.contracts.sample import Sample
from nemo_specrl.speculation.prefix_reuse import behaviour_logprobs
from nemo_specrl.types import FloatArray


def build_rows(
    config: AlgorithmConfig,
    samples: Sequence[Sample],
    *,
    admit: Callable[[Sequence[Sample]], bool] = lambda group: True,
    correction: str = "none",
) -> list[TrainRow]:
    """One row for each sample that the loss has a use for, in their order; whole groups only.

    `correction`: reuse.correction, what the loss is told that the tokens were drawn from. Left out: rollouts that could
    not be scored, empty ones, with `overlong_masking` those that hit the length limit, those of groups not
    admitted. The list may be empty: then there is nothing to learn, and the update must be skipped.
    """
    advantages = sample_advantages(config, samples)
    admitted = {key for key, group in by_prompt(samples).items() if admit(group)}
    rows = []
    for sample, advantage in zip(samples, advantages, strict=True):
        rollout = sample.rollout
        kept = sample.score.valid and rollout.prompt_key in admitted
        cut = config.overlong_masking and rollout.finish_reason == "length"
        if not kept or cut or rollout.length == 0:
            continue
        shape = (rollout.length,)
        old, reference = sample.policy_logprobs, sample.ref_logprobs
        assert old.shape == shape, (old.shape, shape)
        assert reference is None or reference.shape == shape, (reference.shape, shape)
        rows.append(
            TrainRow(
                prompt_ids=rollout.prompt_ids,
                token_ids=rollout.token_ids,
                old_logprobs=old,
                behaviour_logprobs=behaviour_logprobs(rollout, old, correction),
                advantages=np.full(shape, advantage, dtype=np.float32),
                mask=np.ones(shape, dtype=np.float32),
                ref_logprobs=reference,
            )
        )
    return rows


def sample_advantages(config: AlgorithmConfig, samples: Sequence[Sample]) -> FloatArray:
    """[n] each sample's advantage; whole groups only, and of `baseline=batch` the whole step."""
    groups = [sample.rollout.prompt_key for sample in samples]
    rewards = [sample.score.value for sample in samples]
    valid = [sample.score.valid for sample in samples]
    return group_advantages(rewards, valid, groups, config.normalize_std, config.baseline)


def by_prompt(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """The samples of each prompt, in order of first appearance."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.rollout.prompt_key, []).append(sample)
    return groups


def split_groups(samples: Sequence[Sample], n: int) -> list[list[Sample]]:
    """The samples of each of n mini-batches of whole groups, as even as can be, groups in order of first appearance;
    fewer batches where there are fewer groups. Advantages are per group, so building rows batch by batch gives the same
    rows."""
    assert n > 0
    members = list(by_prompt(samples).values())
    parts = np.array_split(np.arange(len(members)), min(n, len(members))) if members else []
    return [[sample for group in part for sample in members[group]] for part in parts]
