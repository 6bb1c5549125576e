"""The gate's transform: uniform under the policy, bent by every wrong law, and blind to how rows are cut into chunks.

Level of each chi-square: 0.1 %, on seeded draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_specrl.speculation.lossless import chi_square, critical_value, survival
from nemo_specrl.speculation.transform import ALTERNATIVE, BINS, POWER_EVERY, Transform, Transformed, transform_verdict
from nemo_specrl.types import IntArray

ROWS, LENGTH, VOCAB = 40, 100, 50


def policy(seed: int, rows: int = ROWS, length: int = LENGTH, vocab: int = VOCAB) -> torch.Tensor:
    """[rows, T, V] log-probs, another law at each position, of reasoning-like and of flat ones."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, length, vocab)) * rng.uniform(0.5, 3.0, size=(rows, length, 1))
    return torch.log_softmax(torch.as_tensor(logits, dtype=torch.float32), -1)


def draw(laws: np.ndarray, seed: int) -> list[IntArray]:
    """One token from each law [rows, T, V]."""
    rng = np.random.default_rng(seed)
    totals = np.cumsum(laws, -1)
    picks = (totals < rng.random((*laws.shape[:2], 1)) * totals[..., -1:]).sum(-1)
    return list(picks.astype(np.int32))


def transform(laws: torch.Tensor, tokens: list[IntArray], chunk: int = 512) -> list[Transformed]:
    """What `Policy.reduce` does."""
    reducer = Transform(tokens, seed=0, step=1)
    length = laws.shape[1]
    return [
        reducer(row, start, laws[row, start : start + chunk])
        for row in range(len(laws))
        for start in range(0, length, chunk)
    ]


def values(parts: list[Transformed]) -> np.ndarray:
    return np.concatenate([part.values for part in parts])


LAWS = policy(0)
P = LAWS.double().exp().numpy()


def top_p(laws: np.ndarray, mass: float) -> np.ndarray:
    """The smallest set of likeliest tokens that holds `mass`."""
    order = np.argsort(-laws, -1)
    ordered = np.take_along_axis(laws, order, -1)
    kept = np.where(np.cumsum(ordered, -1) - ordered < mass, ordered, 0.0)
    out = np.zeros_like(laws)
    np.put_along_axis(out, order, kept, -1)
    return out / out.sum(-1, keepdims=True)


def lenient(laws: np.ndarray, old: np.ndarray) -> np.ndarray:
    """SPEC-RL's law at ell = 1: min(q, p) + (1 - sum min(q, p)) * p."""
    shared = np.minimum(laws, old)
    return shared + (1 - shared.sum(-1, keepdims=True)) * laws


OLD = policy(7).double().exp().numpy()


def test_values_are_uniform_under_the_policy() -> None:
    parts = transform(LAWS, draw(P, 1))
    u = values(parts)
    assert u.min() >= 0
    assert u.max() < 1
    for bins in (BINS, 64):
        counts = np.bincount((u * bins).astype(int), minlength=bins)
        assert chi_square(counts, np.full(bins, 1 / bins)) < critical_value(bins - 1)
    verdict = transform_verdict(parts)
    assert verdict.status == "pass"
    assert verdict.figures["samples"] == ROWS * LENGTH
    assert verdict.figures["power"] > 0.99


def test_the_gate_fails_a_sound_engine_as_seldom_as_it_says() -> None:
    """150 gates at 5 %: failures are Binomial(150, 0.05); above 20 once in 25,000."""
    laws = LAWS[:2]
    failed = sum(not transform_verdict(transform(laws, draw(P[:2], seed)), level=0.05).passed for seed in range(150))
    assert failed <= 20


@pytest.mark.parametrize(
    "law",
    [P ** (1 / 1.25), P ** (1 / 0.8), top_p(P, 0.8), lenient(P, OLD), np.roll(P, 1, axis=1)],
    ids=["temperature 1.25", "temperature 0.8", "top_p 0.8", "lenient", "the next position's law"],
)
def test_another_law_fails_and_is_put_into_words(law: np.ndarray) -> None:
    verdict = transform_verdict(transform(LAWS, draw(law, 2)))
    assert verdict.status == "fail"
    assert verdict.figures["chi_square"] > 1.5 * verdict.figures["critical"]
    for words in ("does not sample from the policy", "VLLM_PLUGINS", "error level 0.1%", "drafter=off"):
        assert words in verdict.text


def test_the_stated_power_is_that_of_repeated_draws() -> None:
    """At 400 tokens the test is weak: of 200 gates the predicted share finds the alternative (+- 4 standard errors)."""
    laws = policy(3, rows=1, length=400, vocab=20)
    p = laws.double().exp().numpy()
    law = p ** (1 / ALTERNATIVE)
    verdicts = [transform_verdict(transform(laws, draw(law, seed)), level=0.05) for seed in range(200)]
    predicted = verdicts[0].figures["power"]
    assert 0.2 < predicted < 0.9
    assert np.mean([not v.passed for v in verdicts]) == pytest.approx(predicted, abs=0.15)
    weak = transform_verdict(transform(laws, draw(p, 1)), level=0.05)
    assert weak.status == "warn"
    assert "draw more samples" in weak.text


def test_tied_tokens_share_their_mass() -> None:
    """A flat law is one tie over all of it; of two tied pairs each value lies within its pair's mass."""
    flat = torch.full((1, 3000, 4), -np.log(4.0))
    u = values(transform(flat, [np.zeros(3000, np.int32)]))
    assert chi_square(np.bincount((u * 16).astype(int), minlength=16), np.full(16, 1 / 16)) < critical_value(15)
    pairs = torch.log(torch.tensor([0.1, 0.4, 0.1, 0.4])).expand(1, 4, 4)
    u = values(transform(pairs, [np.arange(4, dtype=np.int32)]))
    assert (u[[1, 3]] < 0.8).all()
    assert (u[[0, 2]] >= 0.8 - 1e-6).all()


def test_a_token_without_mass_fails_the_gate() -> None:
    masked = LAWS.clone()
    masked[:, :, 0] = -torch.inf
    tokens = draw(masked.double().exp().numpy(), 4)
    tokens[3][5] = 0
    parts = transform(masked, tokens)
    assert (values(parts) == -1.0).sum() == 1
    assert np.isneginf(parts[3].logprobs[5])
    verdict = transform_verdict(parts)
    assert verdict.status == "fail"
    assert "1 tokens have probability 0" in verdict.text
    assert verdict.figures["massless"] == 1
    tokens[3][5] = tokens[3][6]
    assert transform_verdict(transform(masked, tokens)).figures["massless"] == 0


def test_the_alternatives_bins_are_those_of_brute_force() -> None:
    """Tokens of the tempered law, each spread evenly over its interval of the policy's mass, cut at the bins' edges."""
    laws = policy(5, rows=1, length=3, vocab=7)
    (part,) = transform(laws, [np.zeros(3, np.int32)])
    expected = np.zeros(BINS)
    for p in laws[0].double().exp().numpy():
        p = np.sort(p)[::-1]
        tempered = p ** (1 / ALTERNATIVE) / (p ** (1 / ALTERNATIVE)).sum()
        fine = (np.arange(BINS * 4000) + 0.5) / (BINS * 4000)
        token = np.searchsorted(np.cumsum(p), fine).clip(max=6)
        expected += (tempered[token] / p[token]).reshape(BINS, -1).mean(1) / BINS
    np.testing.assert_allclose(part.alternative, expected, atol=2e-4)
    assert part.alternative.sum() == pytest.approx(3)


def test_the_power_comes_from_some_rows_only() -> None:
    for row, part in enumerate(transform(LAWS[: POWER_EVERY + 2], draw(P[: POWER_EVERY + 2], 6))):
        assert part.alternative.sum() == pytest.approx(LENGTH if row % POWER_EVERY == 0 else 0)


@pytest.mark.parametrize("chunk", [1, 7, 99])
def test_chunks_do_not_matter(chunk: int) -> None:
    laws, tokens = LAWS[:3], draw(P[:3], 8)
    whole, parts = transform(laws, tokens), transform(laws, tokens, chunk)
    np.testing.assert_array_equal(values(whole), values(parts))
    np.testing.assert_array_equal(
        np.concatenate([part.logprobs for part in whole]), np.concatenate([part.logprobs for part in parts])
    )
    np.testing.assert_allclose(sum(p.alternative for p in whole), sum(p.alternative for p in parts), atol=1e-9)


def test_logprobs_are_the_policys() -> None:
    (part,) = transform(LAWS[:1], draw(P[:1], 9))
    np.testing.assert_allclose(part.logprobs, LAWS[0].numpy()[np.arange(LENGTH), draw(P[:1], 9)[0]], atol=1e-7)


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 160: draw more samples"):
        transform_verdict(transform(LAWS[:1], draw(P[:1], 10)))
    with pytest.raises(ValueError, match="the gate has 0 tokens"):
        transform_verdict([])


def test_this_tests_alternatives_are_within_reach() -> None:
    """The power against each wrong law above, were it the noncentral chi-square of its own bins: all but certain."""
    limit = critical_value(BINS - 1)
    for law in (P ** (1 / 1.25), top_p(P, 0.8), lenient(P, OLD)):
        law = law / law.sum(-1, keepdims=True)
        u = values(transform(LAWS, draw(law, 11)))
        counts = np.bincount((u * BINS).astype(int), minlength=BINS)
        effect = chi_square(counts, np.full(BINS, 1 / BINS)) - (BINS - 1)  # unbiased for n * distance
        assert survival(limit, BINS - 1, 0.5 * effect) > 0.9
