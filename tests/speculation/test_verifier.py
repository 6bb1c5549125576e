"""The verifier against the rules read slowly, over every chunking, with ids that no model can be fed."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_specrl.speculation import vocabulary
from nemo_specrl.speculation.acceptance import Rule, draw, make_rule
from nemo_specrl.speculation.randomness import uniforms
from nemo_specrl.speculation.verifier import Draft, Sums, Verification, Verifier, verify_logprobs
from nemo_specrl.types import Rollout
from tests.speculation.rollouts import PROMPT, draft, log_laws, rollout, run, sample, top

VERIFYING = ["lenient", "exact", "one_hot", "block"]


def slowly(rule: Rule, source: Rollout, p: np.ndarray, seed: int, step: int) -> tuple[int, int | None]:
    """(kept, replacement) straight from the papers, one position at a time."""
    length = source.length
    u = uniforms(seed, step, source.prompt_key, source.slot, "accept", length + 1)
    v = uniforms(seed, step, source.prompt_key, source.slot, "residual", length + 1)
    q = np.zeros_like(p)
    assert source.topk is not None
    for i in range(length):
        q[i, source.topk.ids[i]] = np.exp(source.topk.logprobs[i].astype(float))
    y = source.token_ids
    name = type(rule).__name__
    if name == "Block":
        w, kept, w_kept = 1.0, 0, 1.0
        for i in range(length):
            if i:
                ratio = p[i - 1, y[i - 1]] / q[i - 1, y[i - 1]] if q[i - 1, y[i - 1]] else 0.0
                w = min(1.0, w * ratio)
            rest = np.maximum(w * p[i] - q[i], 0).sum()
            if i == 0 or u[i] < (rest / (rest + 1 - w) if w < 1 else 1.0):
                kept, w_kept = i, w
        w = min(1.0, w * p[-1, y[-1]] / q[-1, y[-1]]) if q[-1, y[-1]] else 0.0
        if u[length] < w:
            return length, None
        return kept, draw(np.maximum(w_kept * p[kept] - q[kept], 0), v[kept])
    for i in range(length):
        a, b = p[i, y[i]], q[i, y[i]]
        accept = a if name == "OneHot" else min(1.0, getattr(rule, "lenience", 1.0) * a / b) if b else 0.0
        if u[i] >= accept:
            rest = p[i].copy()
            if name == "OneHot":
                rest[y[i]] = 0
            elif name == "Exact":
                rest = np.maximum(p[i] - q[i], 0)
            return i, draw(rest, v[i])
    return length, None


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(VERIFYING), st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12), st.integers(1, 6))
def test_every_chunking_gives_the_rule_read_slowly(name: str, seed: int, length: int, chunk: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    old = log_laws(rng, length, 6)
    new = log_laws(rng, length, 6, near=old)
    source = rollout(old, sample(rng, old), k)
    rule = make_rule(name, 0.5)
    (chunked,) = run(Verifier(rule, [draft(source)], seed=seed, step=3, topk=4), new, chunk)
    (whole,) = run(Verifier(rule, [draft(source)], seed=seed, step=3, topk=4), new)
    assert (whole.kept, whole.replacement) == slowly(rule, source, new.double().exp().numpy(), seed, 3)
    assert (chunked.kept, chunked.replacement) == (whole.kept, whole.replacement)
    for field in ("policy_logprobs", "law_logprobs"):
        np.testing.assert_array_equal(getattr(chunked, field), getattr(whole, field))
    assert chunked.topk is not None
    assert whole.topk is not None
    np.testing.assert_array_equal(chunked.topk.ids, whole.topk.ids)
    decided = [*source.token_ids[: whole.kept], *([] if whole.replacement is None else [whole.replacement])]
    assert len(decided) == len(whole.policy_logprobs) == len(whole.topk.ids)
    np.testing.assert_allclose(whole.policy_logprobs, new.numpy()[np.arange(len(decided)), decided], atol=1e-6)


def test_laws_and_candidates_are_those_of_the_rule() -> None:
    """exact: the policy's. lenient: mu, at kept tokens and at the replaced one."""
    rng = np.random.default_rng(0)
    old = log_laws(rng, 8, 12)
    new = log_laws(rng, 8, 12, near=old)
    seen = 0
    for slot in range(20):
        source = rollout(old, sample(rng, old), 5, slot=slot)
        for name in ("exact", "lenient"):
            rule = make_rule(name, 0.5)
            (got,) = run(Verifier(rule, [draft(source)], seed=0, step=1, topk=5), new, 3)
            n = len(got.law_logprobs)
            p, q = new.double().exp().numpy()[:n], np.zeros((n, 12))
            assert source.topk is not None
            np.put_along_axis(q, source.topk.ids[:n].astype(np.int64), np.exp(source.topk.logprobs[:n]), 1)
            shared = np.minimum(q, math.exp(0.5) * p)
            law = p if name == "exact" else shared + (1 - shared.sum(1, keepdims=True)) * p
            decided = [*source.token_ids[: got.kept], *([] if got.replacement is None else [got.replacement])]
            np.testing.assert_allclose(got.law_logprobs, np.log(law[np.arange(n), decided]), atol=1e-5)
            expected = top(torch.as_tensor(law).log(), 5)
            assert got.topk is not None
            np.testing.assert_array_equal(got.topk.ids, expected.ids)
            np.testing.assert_allclose(got.topk.logprobs, expected.logprobs, atol=1e-5)
            seen += got.replacement is not None
    assert seen > 10


def test_sums_are_measured_on_every_position() -> None:
    """Also after the draft's end; only the bias is that of the positions at which the rule's law applied."""
    rng = np.random.default_rng(1)
    old = log_laws(rng, 12, 8)
    new = log_laws(rng, 12, 8, near=old)
    p, q = new.double().exp().numpy(), old.double().exp().numpy()
    shared = np.minimum(p, q)
    bias = 0.5 * np.abs(shared + (1 - shared.sum(1, keepdims=True)) * p - p).sum(1)
    ended = set()
    for slot in range(20):
        source = rollout(old, sample(rng, old), 8, slot=slot)
        at = (np.arange(12), source.token_ids)
        for name in ("exact", "lenient", "block"):
            (got,) = run(Verifier(make_rule(name), [draft(source)], seed=0, step=0, topk=0), new, 4)
            assert got.topk is None
            assert got.sums.positions == 12
            assert got.sums.tail == 0
            assert got.sums.tv == pytest.approx((1 - np.minimum(1, p[at] / q[at])).sum(), abs=1e-5)
            assert got.sums.accept == pytest.approx(12 - got.sums.tv, abs=1e-5)
            assert got.sums.entropy == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
            if name == "lenient":
                decided = got.kept + (got.replacement is not None)
                assert got.sums.bias_positions == decided
                assert got.sums.bias == pytest.approx(bias[:decided].sum(), abs=1e-5)
                ended.add(decided)
            else:
                assert (got.sums.bias, got.sums.bias_positions) == (0.0, 12)
    assert min(ended) <= 4 < max(ended), "drafts that ended in the first chunk and drafts that went on"


@pytest.mark.parametrize("name", ["exact", "lenient", "block"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_one_sample_estimates_are_unbiased(name: str, k: int) -> None:
    """Over y ~ q, by enumeration: total variation, the mass outside S, the acceptance under `exact`."""
    rng = np.random.default_rng(9)
    old = log_laws(rng, 1, 8)
    new = log_laws(rng, 1, 8, near=old)
    p, q = new[0].double().exp().numpy(), old[0].double().exp().numpy()
    mean = Sums()
    for y in range(8):
        (got,) = run(Verifier(make_rule(name), [draft(rollout(old, [y], k))], seed=0, step=0, topk=0), new)
        mean = mean + Sums(**{field: q[y] * value for field, value in vars(got.sums).items()})
    stored = np.argsort(-q)[:k]
    assert mean.tv == pytest.approx(0.5 * np.abs(p - q).sum(), abs=1e-6)
    assert mean.tail == pytest.approx(1 - q[stored].sum(), abs=1e-6)
    assert mean.accept == pytest.approx(np.minimum(p, q)[stored].sum(), abs=1e-6)


def test_a_chunk_is_read_in_one_transfer_and_a_finished_chain_reads_no_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU each `.cpu()` waits for the device: one a chunk for the evidence, one for the row that is replaced."""
    transfers, columns = [], []
    cpu, gather = torch.Tensor.cpu, vocabulary.at

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        transfers.append(tuple(tensor.shape))
        return cpu(tensor)

    def seen(logprobs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        columns.append(wanted.shape[1])
        return gather(logprobs, wanted)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    monkeypatch.setattr(vocabulary, "at", seen)
    old = log_laws(np.random.default_rng(10), 9, 6)
    masked = torch.full_like(old, -torch.inf).index_fill_(1, torch.tensor([5]), 0.0)
    source = rollout(old, [1, 2, 3, 4, 0, 1, 2, 3, 4], 3)
    for name, read in (("lenient", [4, 1, 1]), ("block", [4, 4, 4]), ("exact", [1, 1, 1])):
        transfers.clear()
        columns.clear()
        (got,) = run(Verifier(make_rule(name), [draft(source)], seed=0, step=0, topk=0), masked, 3)
        assert (got.kept, got.replacement) == (0, 5)
        assert columns == read
        assert transfers == [(3 * c + 3,) for c in read] + [(6,)]


def test_ranks_agree_and_addresses_differ() -> None:
    """Two ranks of a tensor-parallel group see the same law and decide alike; step and slot change the draws."""
    rng = np.random.default_rng(2)
    old = log_laws(rng, 30, 20)
    new = log_laws(rng, 30, 20, near=old)
    tokens = sample(rng, old)

    def outcome(step: int, slot: int) -> list[tuple[int, int | None]]:
        found = [
            run(Verifier(make_rule(n), [draft(rollout(old, tokens, 20, slot=slot))], seed=0, step=step, topk=0), new)[0]
            for n in VERIFYING
        ]
        return [(v.kept, v.replacement) for v in found]

    assert outcome(4, 0) == outcome(4, 0)
    assert len({str(outcome(step, slot)) for step in range(6) for slot in range(6)}) > 30


@pytest.mark.parametrize("name", VERIFYING)
def test_an_id_outside_the_vocabulary_is_rejected_where_it_stands(name: str) -> None:
    """Base models sample ids that a smaller vocabulary does not have; the prefix up to it may still be kept."""
    laws = torch.log_softmax(torch.zeros(4, 6), -1)
    laws[:2] = torch.log(torch.tensor([1 - 5e-13, *[1e-13] * 5]))
    source = rollout(laws, [0, 0, 99, 3], 6)
    d = draft(source, vocab=6)
    assert d.length == 3
    assert d.scorable_ids.tolist() == [0, 0, 0]
    (got,) = run(Verifier(make_rule(name, 50.0), [d], seed=0, step=0, topk=2), laws)
    assert got.kept <= 2
    assert got.replacement is not None
    assert 0 <= got.replacement < 6
    if name != "block":
        assert got.kept == 2
    first = Draft.of(rollout(laws, [-1, 2], 6), limit=9, vocab_size=6)
    assert first is not None
    assert (first.length, first.scorable_ids.tolist()) == (1, [0])
    assert first.token_ids.tolist() == [-1]


def test_candidates_outside_the_vocabulary_have_no_mass() -> None:
    rng = np.random.default_rng(3)
    old = log_laws(rng, 5, 40)
    source = rollout(old, [1, 2, 3, 4, 5], 40)
    new = log_laws(rng, 5, 10)
    (got,) = run(Verifier(make_rule("exact"), [draft(source, vocab=10)], seed=0, step=0, topk=12), new)
    assert got.topk is not None
    assert got.topk.ids.shape[1] == 12
    assert (got.topk.ids[:, 10:] == -1).all()
    assert np.isneginf(got.topk.logprobs[:, 10:]).all()
    assert got.sums.accept < 5


def test_truncated_law_of_the_policy_rejects_what_it_masks() -> None:
    old = torch.log_softmax(torch.zeros(1, 4), -1)
    new = torch.log(torch.tensor([[0.6, 0.4, 0.0, 0.0]]))
    for slot in range(30):
        (got,) = run(
            Verifier(make_rule("exact"), [draft(rollout(old, [3], 4, slot=slot))], seed=0, step=0, topk=3), new
        )
        assert got.kept == 0
        assert got.replacement in (0, 1)
        assert np.isfinite(got.law_logprobs).all()
        assert got.topk is not None
        assert got.topk.ids.tolist() == [[0, 1, -1]]


@pytest.mark.parametrize("name", VERIFYING)
def test_an_unchanged_policy_keeps_everything(name: str) -> None:
    rng = np.random.default_rng(4)
    laws = log_laws(rng, 30, 30)
    if name == "one_hot":  # keeps everything only where the policy is certain
        laws = torch.log(torch.eye(30))
    tokens = sample(rng, laws)
    (got,) = run(Verifier(make_rule(name), [draft(rollout(laws, tokens, 30))], seed=0, step=0, topk=0), laws)
    assert (got.kept, got.replacement) == (len(tokens), None)


def test_limit_and_end_bound_the_draft() -> None:
    laws = log_laws(np.random.default_rng(5), 6, 9)
    ended = rollout(laws, [1, 2, 3, 4, 5, 0], 2, reason="stop")
    assert draft(ended).ended
    assert draft(ended, limit=6).ended
    assert not draft(ended, limit=5).ended
    assert not draft(rollout(laws, [1, 2], 2)).ended
    assert Draft.of(rollout(laws, [], 0), limit=4, vocab_size=9) is None


def test_missing_candidates_are_an_error_that_names_the_setting() -> None:
    laws = log_laws(np.random.default_rng(6), 3, 5)
    bare = draft(rollout(laws, [1, 2, 3], 0))
    for name in ("exact", "block"):
        with pytest.raises(ValueError, match=r"reuse\.topk"):
            Verifier(make_rule(name), [bare], seed=0, step=0, topk=0)
    with pytest.raises(ValueError, match="empty cache"):
        Verifier(make_rule("lenient"), [bare], seed=0, step=0, topk=5)
    assert run(Verifier(make_rule("lenient"), [bare], seed=0, step=0, topk=0), laws)[0].kept == 3


@pytest.mark.parametrize("name", ["lenient", "one_hot"])
def test_an_engines_logprobs_decide_as_the_policys_pass(name: str) -> None:
    rng = np.random.default_rng(7)
    old = log_laws(rng, 10, 4)
    new = log_laws(rng, 10, 4, near=old)
    seen = set()
    for slot in range(30):
        source = rollout(old, sample(rng, old), 0, slot=slot)
        (by_policy,) = run(Verifier(make_rule(name), [draft(source)], seed=0, step=0, topk=0), new)
        given_logprobs = new.numpy()[np.arange(10), source.token_ids]
        by_engine: Verification = verify_logprobs(make_rule(name), draft(source), given_logprobs, seed=0, step=0)
        assert by_engine.kept == by_policy.kept
        assert by_engine.replacement is None
        n = by_engine.kept
        np.testing.assert_allclose(by_engine.law_logprobs, by_policy.law_logprobs[:n], atol=1e-6)
        if name == "one_hot" and n < 10:
            assert by_engine.exclude == source.token_ids[n]
        assert by_engine.sums.tv == pytest.approx(by_policy.sums.tv, abs=1e-5)
        seen.add(n)
    assert len(seen) > 2
    with pytest.raises(ValueError, match=r"reuse\.verifier=policy"):
        verify_logprobs(make_rule("exact"), draft(source), given_logprobs, seed=0, step=0)


def test_parts_travel_between_ranks() -> None:
    laws = log_laws(np.random.default_rng(8), 4, 5)
    verifier = Verifier(make_rule("block"), [draft(rollout(laws, [1, 2, 3, 4], 5))], seed=0, step=0, topk=2)
    part = pickle.loads(pickle.dumps(verifier(0, 0, laws)))
    (got,) = verifier.collect([[part]])
    assert got.kept == 4
    assert verifier.rows[0][0].tolist() == PROMPT.tolist()
