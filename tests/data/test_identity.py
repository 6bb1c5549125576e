"""A resumed run finds the prompts that it began with, or says what has changed."""

import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from nemo_specrl.config.data import DataConfig
from nemo_specrl.data import as_json, changes, load_prompt_data, prompts_digest
from nemo_specrl.types import Prompt

ROWS = [{"prompt": f"{i} + 1", "answer": i + 1} for i in range(6)]


class Characters:
    """A tokenizer of one token a character, with a chat template that writes the date."""

    chat_template = "strftime_now"
    prefix = ""

    def apply_chat_template(self, conversation, strftime_now, **_):
        return [ord(c) for c in strftime_now("%d") + self.prefix + conversation[0]["content"]]


@pytest.fixture
def identity(tmp_path: Path):
    def of(rows, day=date(2026, 1, 31), tokenizer=None):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        config = DataConfig(source=str(path))
        return load_prompt_data(config, tokenizer or Characters(), 512, 64, rendered_on=day).identity

    return of


def test_the_same_rows_are_the_same_after_json(identity):
    before = json.loads(json.dumps(as_json(identity(ROWS))))
    assert changes(before, identity([{"answer": r["answer"], "prompt": r["prompt"]} for r in ROWS]), "x") is None


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*ROWS[:3], {"prompt": "9 + 1", "answer": 10}, *ROWS[4:]], r"other rows: 6 then, 6 now"),
        ([*ROWS[:3], {"prompt": "3 + 1", "answer": 5}, *ROWS[4:]], r"other rows: 6 then, 6 now"),
        (ROWS[:5], "other rows: 6 then, 5 now"),
        ([*ROWS, ROWS[0]], "other rows: 6 then, 7 now"),  # which the prompts alone would not show
        (ROWS[::-1], "the same 6 rows in another order"),
    ],
)
def test_what_has_changed_is_said(identity, rows, said):
    assert said in changes(as_json(identity(ROWS)), identity(rows), "x")


def test_an_edited_template_is_told_from_edited_rows(identity):
    edited = Characters()
    edited.prefix = "Q: "
    assert "chat template was edited" in changes(as_json(identity(ROWS)), identity(ROWS, tokenizer=edited), "x")


def test_midnight_changes_a_template_with_a_date_unless_the_date_is_kept(identity):
    before = as_json(identity(ROWS))
    assert changes(before, identity(ROWS, date(2026, 2, 1)), "x") is not None
    assert changes(before, identity(ROWS, date.fromisoformat(before["rendered_on"])), "x") is None


def test_the_prompts_digest_sees_tokens_answers_and_order() -> None:
    def prompt(ids, answer):
        return Prompt(np.array(ids, dtype=np.int32), answer, "text")

    base = [prompt([1, 2], "3"), prompt([4], "5")]
    others = [[*base[::-1]], [prompt([1, 2], "4"), base[1]], [prompt([1, 3], "3"), base[1]], base[:1]]
    digests = {prompts_digest(rows) for rows in [base, *others]}
    assert len(digests) == 5
    assert prompts_digest(base) == prompts_digest(iter(base))
    assert len(prompts_digest(base)) <= 36
