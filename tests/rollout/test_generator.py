"""Reuse and engine together: whose law the rollouts have, who is asked for what, and what is counted."""

import functools
import itertools

import numpy as np
import pytest

from nemo_specrl.config.compose import compose
from nemo_specrl.config.run import RunConfig
from nemo_specrl.rollout.generator import RolloutBatch, RolloutGenerator
from nemo_specrl.speculation.cache import RolloutCache
from nemo_specrl.speculation.lossless import critical_value
from nemo_specrl.types import Prompt
from tests.rollout.toy import ToyEngine, ToyPolicy, random_table, toy_generator

EOS, R = 3, 3
OLD, NEW = random_table(1), random_table(2)
PROMPTS = [Prompt(np.array([0, i % 3], np.int32), "", "") for i in range(3)]


@functools.cache
def composed(overrides: tuple[str, ...]) -> RunConfig:
    """Composing costs more than a test's rollouts."""
    return compose(list(overrides))


def make(
    table: np.ndarray, cache: RolloutCache, *overrides: str, group: int = 4, limit: int = R
) -> tuple[RolloutGenerator, ToyEngine]:
    run = composed((f"algorithm.group_size={group}", f"sampling.max_new_tokens={limit}", *overrides))
    engine = ToyEngine(table, EOS)
    return toy_generator(run, ToyPolicy(table, EOS), engine, cache), engine


def two_epochs(*overrides: str, new: np.ndarray = NEW, group: int = 4, seed: int = 0) -> tuple[RolloutBatch, ToyEngine]:
    """One epoch under OLD fills the cache; the second, under `new`, reuses it."""
    cache = RolloutCache(2**26)
    options = [*overrides, f"seed={seed}"]
    first, _ = make(OLD, cache, *options, group=group)
    for rollout in first.rollouts(PROMPTS, step=1, epoch=1, version=0).rollouts:
        cache.put(rollout, 1)
    second, engine = make(new, cache, *options, group=group)
    return second.rollouts(PROMPTS, step=2, epoch=2, version=1), engine


def sequence_law(table: np.ndarray, first: int) -> dict[tuple[int, ...], float]:
    """Probability of every response of at most R tokens."""
    law: dict[tuple[int, ...], float] = {}

    def walk(prefix: tuple[int, ...], last: int, p: float) -> None:
        if len(prefix) == R or (prefix and prefix[-1] == EOS):
            law[prefix] = p
            return
        for token in range(len(table)):
            walk((*prefix, token), token, p * table[last, token])

    walk((), first, 1.0)
    return law


def statistic(rule: str, group: int, *extra: str) -> tuple[float, int]:
    """Chi-square of whole responses in the second epoch against NEW's law, and its degrees of freedom."""
    batch, _ = two_epochs(f"reuse={rule}", "reuse.topk=2" if rule != "one_hot" else "reuse.topk=1", *extra, group=group)
    total, freedom = 0.0, 0
    for i, prompt in enumerate(PROMPTS):
        law = {k: p for k, p in sequence_law(NEW, int(prompt.token_ids[-1])).items() if p * group > 5}
        counts = dict.fromkeys(law, 0)
        for rollout in batch.rollouts[i * group : (i + 1) * group]:
            key = tuple(int(t) for t in rollout.token_ids)
            if key in counts:
                counts[key] += 1
        rest_p, rest_n = 1 - sum(law.values()), group - sum(counts.values())
        total += sum((counts[k] - group * p) ** 2 / (group * p) for k, p in law.items())
        total += (rest_n - group * rest_p) ** 2 / (group * rest_p) if rest_p > 1e-9 else 0.0
        freedom += len(law) - (rest_p <= 1e-9)
    return total, freedom


@pytest.mark.parametrize("rule", ["exact", "block", "one_hot"])
def test_exact_rules_give_the_policys_law_of_whole_responses(rule: str) -> None:
    """Error level 0.1 %; the power is shown by the next test."""
    value, freedom = statistic(rule, 600)
    assert value < critical_value(freedom)


@pytest.mark.parametrize("rule", ["lenient", "full", "random"])
def test_the_same_check_fails_for_biased_rules(rule: str) -> None:
    value, freedom = statistic(rule, 600)
    assert value > 2 * critical_value(freedom)


def test_one_hot_verified_by_the_engine_is_exact_too() -> None:
    value, freedom = statistic("one_hot", 600, "reuse.verifier=engine")
    assert value < critical_value(freedom)


def test_an_unchanged_policy_reuses_everything_and_never_asks_the_engine() -> None:
    for rule in ("exact", "block", "lenient"):
        batch, engine = two_epochs(f"reuse={rule}", "reuse.topk=4", new=OLD)
        assert engine.asked == []
        assert batch.stats.full == len(batch.rollouts) == 12
        assert batch.metrics()["rollout/new_tokens"] == 0
        assert all(r.policy_logprobs is not None and r.reused == r.length for r in batch.rollouts)


def test_off_looks_at_no_cache() -> None:
    batch, engine = two_epochs("reuse=off")
    assert len(engine.asked) == 12
    assert batch.stats.drafts == 0
    assert {r.reused for r in batch.rollouts} == {0}


@pytest.mark.parametrize("rule", ["lenient", "exact", "block", "one_hot", "random"])
def test_limits_and_counts_add_up(rule: str) -> None:
    batch, engine = two_epochs(f"reuse={rule}", "reuse.topk=2", group=50)
    m = batch.metrics()
    assert sum(r.length for r in batch.rollouts) == (
        m["rollout/new_tokens"] + m["rollout/reused_tokens"] + m["rollout/replaced_tokens"]
    )
    assert m["reuse/full"] + m["reuse/partial"] + m["reuse/none"] == m["reuse/drafts"] == 150
    assert len(engine.asked) == 150 - batch.stats.finished
    for r in batch.rollouts:
        ended = int(r.token_ids[-1]) == EOS
        assert r.length <= R
        assert EOS not in r.token_ids[:-1]
        assert r.finish_reason == ("stop" if ended else "length")
        assert ended or r.length == R
        assert len(r.logprobs) == len(r.policy_version) == r.length
    for request in engine.asked:
        assert request.max_tokens == R - len(request.prefix_ids) > 0


def test_logprobs_are_those_of_the_law_for_exact_reuse() -> None:
    batch, _ = two_epochs("reuse=exact", "reuse.topk=4", group=20)
    policy = ToyPolicy(NEW, EOS)
    for r in batch.rollouts:
        law = policy.logprobs(r.prompt_ids, r.token_ids)
        np.testing.assert_allclose(r.logprobs, law[np.arange(r.length), r.token_ids], atol=1e-5)
        assert (r.policy_version == 1).all()


def test_same_seed_same_rollouts_and_another_seed_others() -> None:
    def tokens(seed: int) -> list[list[int]]:
        return [r.token_ids.tolist() for r in two_epochs("reuse=exact", "reuse.topk=4", seed=seed)[0].rollouts]

    assert tokens(0) == tokens(0)
    assert tokens(0) != tokens(1)


def test_no_engine_seed_is_used_twice() -> None:
    cache = RolloutCache(2**26)
    seeds = []
    for step in range(1, 9):
        generator, engine = make(OLD, cache, "reuse=off", group=8)
        generator.rollouts(PROMPTS, step=step, epoch=1, version=0)
        seeds += [request.seed for request in engine.asked]
    assert len(set(seeds)) == len(seeds)


def test_a_shorter_limit_on_reuse_is_kept() -> None:
    cache = RolloutCache(2**26)
    no_eos = np.full((4, 4), 1 / 3)
    no_eos[:, EOS] = 0
    first, _ = make(no_eos, cache, "reuse=lenient", limit=6)
    for rollout in first.rollouts(PROMPTS, step=1, epoch=1, version=0).rollouts:
        cache.put(rollout, 1)
    second, engine = make(no_eos, cache, "reuse=lenient", limit=2)
    batch = second.rollouts(PROMPTS, step=2, epoch=2, version=1)
    assert {r.length for r in batch.rollouts} == {2}
    assert {r.finish_reason for r in batch.rollouts} == {"length"}
    assert engine.asked == []


def test_prompts_that_share_tokens_are_told_apart() -> None:
    keys = {p.key for p in PROMPTS} | {Prompt(np.array([0], np.int32), "", "").key}
    assert len(keys) == 4
    assert len({tuple(p.token_ids.tolist()) for p in PROMPTS}) == 3
    assert all(a != b for a, b in itertools.pairwise(sorted(keys)))


@pytest.mark.parametrize("rule", ["exact", "lenient", "off"])
def test_every_token_says_who_wrote_it(rule: str) -> None:
    """The toy engine does not tell whether it drafted: its tokens are of unknown writers."""
    batch, _ = two_epochs(f"reuse={rule}", *([] if rule == "off" else ["reuse.topk=4"]))
    seen = set()
    for sample in batch.samples:
        reused, length = sample.rollout.reused, sample.rollout.length
        replaced = length - reused - sample.drawn
        assert replaced in (0, 1)
        assert sample.written == "r" * reused + "x" * replaced + "u" * sample.drawn
        seen |= set(sample.written)
    assert seen == set("u" if rule == "off" else "rxu")
