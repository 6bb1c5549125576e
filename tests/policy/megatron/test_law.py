"""The sampling law against a reference implementation, its gradient, and its vocabulary shards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.policy.megatron.law import Law, log_probs, score, truncation_mask

LAWS = [(1.0, 1.0, 0), (0.6, 1.0, 0), (1.0, 0.8, 0), (1.3, 1.0, 5), (0.7, 0.9, 7), (1.0, 1e-6, 0), (2.0, 0.5, 1)]


def reference(logits: np.ndarray, temperature: float, top_p: float, top_k: int) -> np.ndarray:
    """[V] float64 log-probabilities, token by token: temperature, the k most likely, then the smallest set of the
    most likely tokens whose mass reaches top_p."""
    z = logits.astype(np.float64) / temperature
    order = np.argsort(-z)
    kept = order[:top_k] if top_k else order
    p = np.exp(z[kept] - z[kept].max())
    p /= p.sum()
    if top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(p)[:-1]])
        kept = kept[before < top_p]
    out = np.full(len(z), -np.inf)
    mass = np.exp(z[kept] - z[kept].max())
    out[kept] = np.log(mass / mass.sum())
    return out


def draw(n: int = 40, v: int = 23, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, v, generator=g) * 3, torch.randint(0, v, (n,), generator=g)


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), LAWS)
def test_the_law_is_the_engines(temperature: float, top_p: float, top_k: int) -> None:
    logits, targets = draw()
    law = Law(logits.shape[1], temperature, top_p, top_k)
    expected = np.stack([reference(row.numpy(), temperature, top_p, top_k) for row in logits])
    whole = log_probs(logits, law).numpy()
    np.testing.assert_array_equal(np.isneginf(whole), np.isneginf(expected))
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    logprobs, entropy = score(logits, targets, law)
    np.testing.assert_allclose(logprobs.numpy(), expected[np.arange(len(targets)), targets.numpy()], atol=1e-5)
    p = np.exp(expected)
    np.testing.assert_allclose(entropy.numpy(), -np.where(p > 0, p * expected, 0).sum(-1), atol=1e-5)


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), LAWS)
def test_the_gradient_is_the_logits_softmax(temperature: float, top_p: float, top_k: int) -> None:
    logits, targets = draw()
    law = Law(logits.shape[1], temperature, top_p, top_k)
    ours, theirs = (logits.double().requires_grad_() for _ in range(2))
    scaled = theirs / temperature
    masked = scaled.masked_fill(~truncation_mask(scaled.detach(), top_k, top_p), -torch.inf)
    expected = masked.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    inside = torch.isfinite(expected)
    weights = torch.linspace(-1, 1, len(targets))
    (expected[inside] * weights[inside]).sum().backward()
    logprobs, _ = score(ours, targets, law)
    (logprobs.where(inside, torch.zeros(())) * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_scoring_leaves_the_logits_alone() -> None:
    """fp32 logits need no conversion, so scaling them in place would corrupt what the backward pass reads."""
    logits, targets = draw()
    kept = logits.clone()
    score(logits, targets, Law(23, temperature=0.5))
    log_probs(logits, Law(23, temperature=0.5))
    assert torch.equal(logits, kept)


def test_many_slices_equal_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = draw()
    law = Law(23, temperature=0.9, top_p=0.8)
    whole = score(logits, targets, law)
    monkeypatch.setattr("nemo_specrl.policy.megatron.law._SLICE", 3 * 23)
    sliced = score(logits, targets, law)
    assert all(torch.equal(a, b) for a, b in zip(whole, sliced, strict=True))


def test_padding_of_the_vocabulary_has_no_mass() -> None:
    logits, targets = draw(v=23)
    padded = torch.cat([logits, torch.full((len(logits), 9), 50.0)], dim=1)
    law = Law(23)
    torch.testing.assert_close(score(padded, targets, law)[0], score(logits, targets, law)[0])
    assert log_probs(padded, law).shape == (len(logits), 23)


def test_the_most_likely_token_always_stays() -> None:
    keep = truncation_mask(torch.tensor([[5.0, 0.0, -1.0]]), 0, 1e-9)
    assert keep.tolist() == [[True, False, False]]


def test_shards_cover_the_vocabulary() -> None:
    for vocab, tp in ((131, 2), (128, 4), (7, 3)):
        laws = [Law(vocab, tp=tp, tp_rank=r) for r in range(tp)]
        ids = [i for law in laws for i in range(law.start, law.start + law.width)]
        assert ids == list(range(vocab))


@pytest.mark.parametrize("bad", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}])
def test_options_that_are_no_law(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Law.of(SamplingConfig(**bad), 10)  # type: ignore[arg-type]
