"""The examples of docs/extending.md: each in one new file, each registered by one line, each at work."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_specrl.config import algorithm, rules
from nemo_specrl.config.compose import compose
from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.contracts.sample import RewardResult, Sample
from nemo_specrl.drafting import DRAFTERS, make_drafter
from nemo_specrl.rewards.base import REWARDS, load_reward
from nemo_specrl.speculation.acceptance import make_rule
from nemo_specrl.training.factories import make_reuse
from nemo_specrl.types import Prompt, Rollout

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
FILES = {block.split("\n")[0].removeprefix("# "): block for block in BLOCKS if block.startswith("# ")}
LINES = [block for block in BLOCKS if not block.startswith("# ")]
REGISTRIES: dict[str, Any] = {"RULES": rules.RULES, "DRAFTERS": DRAFTERS, "ALGORITHMS": algorithm.ALGORITHMS}


@pytest.fixture(autouse=True)
def _written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register every line, then load every file under the name that it would have."""
    for line in LINES:
        name, key = re.match(r'(\w+)\["(\w+)"\]', line).groups()  # type: ignore[union-attr]
        monkeypatch.setitem(REGISTRIES[name], key, None)  # taken out again at the end
        exec(line, {**REGISTRIES, **vars(rules), **vars(algorithm), name: REGISTRIES[name]})
    for path, source in FILES.items():
        module = types.ModuleType(path.removesuffix(".py").replace("/", "."))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, path, "exec"), module.__dict__)


def test_the_page_has_an_example_of_each() -> None:
    assert len(FILES) == 4
    assert all(len(line.strip().split("\n")) == 1 for line in LINES)
    assert {re.match(r"\w+", line)[0] for line in LINES} == set(REGISTRIES)  # type: ignore[index]


def test_the_rule_is_exact_and_the_configuration_takes_it() -> None:
    from tests.speculation.enumeration import gap, mean_kept, output_law, table

    rng = np.random.default_rng(0)
    p, q = table(rng, 4), table(rng, 4)
    rule = make_rule("timid")
    assert gap(output_law(rule, p, q, 3, 0, 3), p, 3, 0) < 1e-12
    assert mean_kept(rule, p, q, 3, 0, 3) < mean_kept(make_rule("exact"), p, q, 3, 0, 3)
    run = compose(["reuse.rule=timid", "reuse.topk=3"])
    model: Any = types.SimpleNamespace(eos_token_ids=(0,), vocab_size=9)
    cache: Any = None
    reuse = make_reuse(run, model, cache)
    assert (reuse.rule, reuse.topk) == (rule, 3)
    with pytest.raises(ValueError, match=r"use reuse\.verifier=policy"):
        compose(["reuse.rule=timid", "reuse.verifier=engine"])


def test_the_drafter_drafts() -> None:
    compose(["drafter.method=short_ngram"])
    drafter = make_drafter(DrafterConfig(method="short_ngram"))
    drafter.check()
    found = drafter.speculative_config()
    assert found is not None
    assert (found["method"], found["prompt_lookup_max"], found["num_speculative_tokens"]) == ("ngram", 2, 4)


def test_the_algorithm_learns_from_the_reward_itself() -> None:
    import torch

    from nemo_specrl.algorithms import make_algorithm
    from nemo_specrl.contracts.rows import LossBatch

    config = compose(["algorithm.name=reinforce"]).algorithm
    ids = np.array([1, 2], np.int32)
    zeros = np.zeros(2, np.float32)
    samples = [
        Sample(
            Prompt(ids, "", ""),
            Rollout("p", slot, ids, ids + slot, zeros, ids, "stop", policy_logprobs=zeros),
            reward=RewardResult(value),
        )
        for slot, value in enumerate((1.0, 0.25))
    ]
    rows = make_algorithm(config).rows(samples)
    assert [row.advantages.tolist() for row in rows] == [[1.0, 1.0], [0.25, 0.25]]
    one = torch.ones(1, 2)
    loss, _ = make_algorithm(config).loss()(2 * one, LossBatch(one, one, 3 * one, one / 2))
    assert float(loss) == -6.0


def test_the_reward_is_named_by_its_class_or_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = Prompt(np.array([1], np.int32), "42", "")
    monkeypatch.setitem(REWARDS, "contains", "my_package.rewards:ContainsAnswer")
    for name in ("my_package.rewards:ContainsAnswer", "contains"):
        reward = load_reward(name)
        reward.check(prompt)
        assert reward("it is 42", prompt).value == 1.0
