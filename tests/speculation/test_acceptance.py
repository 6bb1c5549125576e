"""The laws of the rules, by enumeration of the code that runs (ALGORITHMS, the lossless gate, points 1 to 5 and 9)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from nemo_specrl.config.rules import RULES
from nemo_specrl.speculation.acceptance import Block, Exact, Lenient, OneHot, Rule, draw, make_rule
from tests.speculation.enumeration import constant, evidence, gap, kept_law, mean_kept, output_law, sequences, table

EXACT = [Exact(), OneHot(), Block()]


def name(rule: Rule) -> str:
    return type(rule).__name__.lower()


@pytest.mark.parametrize("rule", EXACT, ids=name)
@pytest.mark.parametrize("vocab", [2, 3, 6])
def test_one_call_gives_the_policys_law(rule: Rule, vocab: int) -> None:
    """One position, random and sparse (p, q), every number of stored candidates."""
    rng = np.random.default_rng(vocab)
    for sparsity, k in itertools.product([0.0, 0.4], range(1, vocab + 1)):
        for _ in range(10):
            p, q = table(rng, vocab, sparsity), table(rng, vocab, sparsity)
            assert gap(output_law(rule, p, q, 1, None, k), p, 1, None) < 1e-12


@pytest.mark.parametrize("rule", EXACT, ids=name)
def test_degenerate_laws(rule: Rule) -> None:
    a, b = np.array([0.5, 0.5, 0.0, 0.0]), np.array([0.0, 0.0, 0.3, 0.7])
    masked = np.array([0.6, 0.4, 0.0, 0.0])  # top-p leaves two tokens
    wide = np.array([0.1, 0.2, 0.3, 0.4])
    sure = np.array([0.0, 1.0, 0.0, 0.0])
    for p, q in [(a, a), (a, b), (b, a), (masked, wide), (wide, masked), (sure, wide), (wide, sure), (sure, sure)]:
        for k in (1, 2, 4):
            joint = output_law(rule, constant(p), constant(q), 2, None, k)
            assert gap(joint, constant(p), 2, None) < 1e-12


@pytest.mark.parametrize("rule", EXACT, ids=name)
@pytest.mark.parametrize("eos", [None, 0])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_joint_law_of_a_model_with_end_and_length_limit(rule: Rule, eos: int | None, k: int) -> None:
    """V = 3, T = 4: the rollout ends at EOS or at the limit, accepted or drawn as a replacement."""
    rng = np.random.default_rng(7)
    for sparsity in (0.0, 0.3):
        p, q = table(rng, 3, sparsity), table(rng, 3, sparsity)
        assert gap(output_law(rule, p, q, 4, eos, k), p, 4, eos) < 1e-12


def test_block_through_weights_above_and_below_one() -> None:
    """Drafts whose running weight falls and recovers are where a wrong weight recursion shows."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        p, q = table(rng, 2), table(rng, 2)
        assert gap(output_law(Block(), p, q, 6, None, 2), p, 6, None) < 1e-12


def test_block_weights_are_the_papers_recursion() -> None:
    rng = np.random.default_rng(0)
    p, q = table(rng, 4, 0.2), table(rng, 4)
    for draft, _ in itertools.islice(sequences(q, 5, None), 0, None, 37):
        e, _ = evidence(p, q, draft, 4)
        expected = [1.0]
        for a, b in zip(e.p, e.q, strict=True):
            expected.append(min(1.0, expected[-1] * a / b))
        np.testing.assert_allclose(Block().weights(e), expected, atol=1e-14)
        head = Block().weights(e)[2]
        tail = type(e)(e.p[2:], e.q[2:], e.p_top[2:], e.q_top[2:])
        np.testing.assert_allclose(Block().weights(tail, head), expected[2:], atol=1e-14)


def test_block_keeps_at_least_as_much_as_exact() -> None:
    rng = np.random.default_rng(1)
    gains = []
    for k in (1, 2, 3):
        for _ in range(10):
            p, q = table(rng, 3), table(rng, 3)
            gains.append(mean_kept(Block(), p, q, 4, 0, k) - mean_kept(Exact(), p, q, 4, 0, k))
    assert min(gains) > -1e-12
    assert max(gains) > 0.01


def test_mean_acceptance_has_its_closed_form() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
        tv = 0.5 * np.abs(p - q).sum()
        assert mean_kept(Exact(), constant(p), constant(q), 1, None, 6) == pytest.approx(1 - tv, abs=1e-12)
        assert mean_kept(Block(), constant(p), constant(q), 1, None, 6) == pytest.approx(1 - tv, abs=1e-12)
        assert mean_kept(OneHot(), constant(p), constant(q), 1, None, 6) == pytest.approx(float(p @ q), abs=1e-12)
        k = 3
        inside = np.argsort(-q)[:k]
        kept = np.minimum(p, q)[inside].sum()
        assert mean_kept(Exact(), constant(p), constant(q), 1, None, k) == pytest.approx(kept, abs=1e-12)


@pytest.mark.parametrize("lenience", [1.0, math.exp(0.5), 4.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_lenient_has_the_law_it_states(lenience: float, k: int) -> None:
    """... which is the paper's min(q, ell p) + (1 - b) p, and not the policy's."""
    rng, rule = np.random.default_rng(4), Lenient(lenience)
    for _ in range(10):
        p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
        stored = np.isin(np.arange(5), np.argsort(-q)[:k])
        shared = np.where(stored, np.minimum(q, lenience * p), 0.0)
        closed = shared + (1 - shared.sum()) * p
        joint = output_law(rule, constant(p), constant(q), 1, None, k)
        assert max(abs(joint[(y,)] - closed[y]) for y in range(5)) < 1e-12
        for y in range(5):
            e, ids = evidence(constant(p), constant(q), (y,), k)
            law = rule.law(e)
            assert law.at_draft[0] == pytest.approx(closed[y], abs=1e-12)
            dense = law.scale[0] * p
            dense[ids[0]] += law.bump[0]
            np.testing.assert_allclose(dense, closed, atol=1e-12)
        assert np.abs(closed - p).max() > 1e-3


@pytest.mark.parametrize("lenience", [0.5, 1.0, math.exp(0.5), 2.0, 4.0])
def test_bias_of_lenient_is_bounded(lenience: float) -> None:
    rng, rule, worst = np.random.default_rng(5), Lenient(lenience), 0.0
    for alpha in (0.2, 1.0):
        for _ in range(2000):
            p, q = rng.dirichlet(np.full(2, alpha)), rng.dirichlet(np.full(2, alpha / 10))
            e, _ = evidence(constant(p), constant(q), (0,), 2)
            law = rule.law(e)
            dense = np.minimum(q, lenience * p) + law.scale[0] * p
            assert law.bias(e)[0] == pytest.approx(0.5 * np.abs(dense - p).sum(), abs=1e-12)
            worst = max(worst, float(law.bias(e)[0]))
    assert 0.97 * rule.bias_bound < worst <= rule.bias_bound + 1e-12


def test_lenient_without_candidates_is_the_published_rule() -> None:
    """Any token is tested by its own q, and the recorded law lies between q (forgiven) and p (replaced)."""
    p, q = np.array([0.1, 0.9]), np.array([0.5, 0.5])
    for y, accept in [(0, 0.4), (1, 1.0)]:
        e, _ = evidence(constant(p), constant(q), (y,), 0)
        rule = Lenient(2.0)
        assert kept_law(rule, e)[1] == pytest.approx(accept)
        assert rule.law(e).at_draft[0] == pytest.approx(accept * q[y] + (1 - accept) * p[y])
    joint = output_law(Lenient(1.0), constant(p), constant(q), 1, None, 0)
    assert joint[(0,)] == pytest.approx(0.1 + 0.4 * 0.1)


def test_baselines_cut_where_they_say() -> None:
    assert make_rule("full").cut(7, 0.3) == 7
    cuts = [make_rule("random").cut(3, u) for u in (np.arange(4000) + 0.5) / 4000]
    assert np.bincount(cuts).tolist() == [1000] * 4


def test_registry() -> None:
    assert make_rule("lenient", 0.5) == Lenient(math.exp(0.5))
    assert {n for n in RULES if n != "off" and make_rule(n).exact} == {"exact", "one_hot", "block"}
    with pytest.raises(ValueError, match="there are lenient"):
        make_rule("greedy")
    with pytest.raises(ValueError, match="log_lenience"):
        Lenient(0.0)


def test_draw_inverts_the_cdf() -> None:
    weights = np.array([0.0, 2.0, 0.0, 1.0, 1.0, 0.0])
    picks = [draw(weights, u) for u in (np.arange(400) + 0.5) / 400]
    assert np.bincount(picks, minlength=6).tolist() == [0, 200, 0, 100, 100, 0]
    assert draw(weights, 0.0) == 1
    assert draw(weights, np.nextafter(1.0, 0.0)) == 4
    assert draw(np.zeros(3), 0.5) == -1


@pytest.mark.parametrize("name", [name for name in RULES if name != "off"])
def test_a_rule_is_what_its_line_says(name: str) -> None:
    assert make_rule(name).facts is RULES[name]
