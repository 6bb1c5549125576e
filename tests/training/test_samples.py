"""What is kept of a step's rollouts for people: token by token, bounded, without secrets."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_specrl.config.algorithm import AlgorithmConfig
from nemo_specrl.contracts.sample import RewardResult, Sample
from nemo_specrl.training import samples as module
from nemo_specrl.training.samples import sample_tokens
from nemo_specrl.training.token_texts import token_texts
from nemo_specrl.types import Prompt, Rollout

GRPO = AlgorithmConfig(normalize_std=False)


class Bytes:
    """A tokenizer of bytes: a token is one byte of UTF-8, 256 the end. A leading blank is dropped, as some do."""

    eos_token_id = 256
    pad_token_id = chat_template = None

    def __len__(self) -> int:
        return 257

    def decode(self, token_ids, skip_special_tokens=False):  # type: ignore[no-untyped-def]
        text = bytes(i for i in token_ids if i < 256).decode("utf-8", errors="replace")
        end = "<end>" if 256 in token_ids and not skip_special_tokens else ""
        return text.removeprefix(" ") + end


def ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("text", ["two plus two", "é ü", "日本", "👍🏽 ok", "a\n\tb"])
def test_texts_add_up_and_a_character_of_several_tokens_is_the_last_ones(text: str) -> None:
    found = token_texts(Bytes(), [*ids(text), 256])  # type: ignore[arg-type]
    assert "".join(found) == text + "<end>"
    assert len(found) == len(ids(text)) + 1
    assert all(piece == "" or len(piece) <= 2 for piece in found[:-1])


def test_a_blank_inside_stays_and_unknown_ids_are_named() -> None:
    assert token_texts(Bytes(), [97, 32, 98]) == ["a", " ", "b"]  # type: ignore[arg-type]
    assert token_texts(Bytes(), [97, 999, 98]) == ["a", "[token 999]", "b"]  # type: ignore[arg-type]
    torn = token_texts(Bytes(), ids("é")[:1])  # type: ignore[arg-type]
    assert torn == ["\N{REPLACEMENT CHARACTER}"], "a response may end inside a character"


def sample(text: str, reward: float, slot: int = 0, *, written: str = "", valid: bool = True) -> Sample:
    tokens = np.array(ids(text), np.int32)
    n = len(tokens)
    rollout = Rollout(
        "key", slot, np.array([1], np.int32), tokens, np.full(n, -1, np.float32), np.zeros(n, np.int32), "stop",
        policy_logprobs=np.full(n, -0.25, np.float32),
    )  # fmt: skip
    prompt = Prompt(np.array([1], np.int32), "gold", "the problem")
    return Sample(prompt, rollout, reward=RewardResult(reward, valid), written=written)


def test_a_rollout_token_by_token() -> None:
    batch = [sample("abc", 1.0, written="rxg"), sample("d", 0.0, 1, written="d"), sample("e", 0.0, 2, valid=False)]
    first, second, third = sample_tokens(batch, Bytes(), 8, GRPO)  # type: ignore[arg-type]
    assert (first["tokens"], first["by"], first["ids"]) == (["a", "b", "c"], "rxg", [97, 98, 99])
    assert first["logprobs"] == [-0.25] * 3
    assert (first["reward"], first["advantage"], first["answer"], first["length"]) == (1.0, 0.5, "gold", 3)
    assert (second["advantage"], second["by"]) == (-0.5, "d")
    assert (third["reward"], third["advantage"], third["by"]) == (None, 0.0, "u")


def test_a_long_response_keeps_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD", 3)
    monkeypatch.setattr(module, "TAIL", 2)
    (found,) = sample_tokens([sample("abcdefgh", 1.0, written="rrrxgggd")], Bytes(), 1, GRPO)  # type: ignore[arg-type]
    assert (found["tokens"], found["by"]) == (["a", "b", "c", "g", "h"], "rrrgd")
    assert (found["cut"], found["left_out"], found["length"]) == (3, 3, 8)


def test_a_secret_that_lies_across_tokens_is_taken_out() -> None:
    secret = "hf_" + "a1" * 12
    (found,) = sample_tokens([sample(f"my {secret}", 1.0)], Bytes(), 1, GRPO)  # type: ignore[arg-type]
    assert found["tokens"] == ["my [redacted]"]
    assert found["ids"] == found["logprobs"] == []
    assert secret not in str(found)


def test_even_choice_of_a_step() -> None:
    batch = [sample("a", float(i), i) for i in range(20)]
    found = sample_tokens(batch, Bytes(), 4, GRPO)  # type: ignore[arg-type]
    assert [row["slot"] for row in found] == [0, 6, 12, 19]
    assert sample_tokens(batch, Bytes(), 0, GRPO) == []  # type: ignore[arg-type]
