"""The shapes that speculation and the draft heads' mathematics state are those that they meet, at every call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from nemo_specrl.config.engine import SamplingConfig
from nemo_specrl.config.rules import RULES
from nemo_specrl.policy.megatron.law import Law
from nemo_specrl.policy.mtp import events, loss, start
from nemo_specrl.speculation import acceptance, vocabulary
from tests.shapes import enforce
from tests.speculation.enumeration import output_law, table


def test_every_rule_keeps_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert enforce(acceptance, monkeypatch) > 15
    rng = np.random.default_rng(0)
    p, q = table(rng, 4, sparsity=0.2), table(rng, 4)
    for name, facts in RULES.items():
        if facts.verifies and name != "off":
            rule = acceptance.make_rule(name)
            assert abs(sum(output_law(rule, p, q, 3, 0, 2).values()) - 1) < 1e-9
            law = rule.law(acceptance.Evidence(*(np.full(shape, 0.2) for shape in ((3,), (3,), (3, 2), (3, 2)))))
            if law is not None:
                assert law.scale.shape == (3,)


def test_a_wrong_shape_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    enforce(acceptance, monkeypatch)
    with pytest.raises(TypeCheckError):
        acceptance.ratio(np.ones(3), np.ones(2))
    with pytest.raises(TypeCheckError):
        acceptance.Evidence(np.ones(3), np.ones(3), np.ones((3, 2)), np.ones((2, 2)))
    with pytest.raises(TypeCheckError):
        acceptance.ratio(np.ones(3, dtype=np.int64), np.ones(3))


def test_the_vocabularys_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert enforce(vocabulary, monkeypatch) == 4
    logprobs = torch.randn(5, 9).log_softmax(-1)
    columns = torch.randint(9, (5, 3))
    vocabulary.at(logprobs, columns)
    vocabulary.entropy(logprobs)
    vocabulary.top(logprobs, 2)
    vocabulary.top_of_law(logprobs, 2, torch.ones(5), torch.zeros(5, 3), columns)


@pytest.mark.parametrize("kind", ["kl", "acceptance"])
@pytest.mark.parametrize("topk", [0, 3])
def test_the_heads_losses(kind: str, topk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert enforce(loss, monkeypatch) >= 9
    law = Law.of(SamplingConfig(temperature=0.7, top_p=0.9), vocab_size=7)
    student, teacher, head = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4), torch.randn(8, 4)
    total, _ = loss.distil(student, teacher, head, torch.ones(6), law, topk, kind)
    total.backward()
    loss.agreement(student, teacher, head, law)
    with pytest.raises(TypeCheckError):
        loss.distil(student, teacher[:5], head, torch.ones(6), law, topk, kind)


def test_start_and_events(monkeypatch: pytest.MonkeyPatch) -> None:
    assert enforce(start, monkeypatch) == 2
    assert enforce(events, monkeypatch) == 1
    fit = start.LeastSquares(3, torch.device("cpu"))
    fit.add(torch.randn(20, 6), torch.randn(20, 3))
    fit.solve(None)
    events.possible(np.ones(5, np.float32), 3)
