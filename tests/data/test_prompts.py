import json
from datetime import date

import numpy as np
import pytest

from nemo_specrl.config.data import DataConfig
from nemo_specrl.config.model import ModelConfig
from nemo_specrl.data import load_prompt_data, load_prompts
from nemo_specrl.models import load_tokenizer, resolve_model
from nemo_specrl.types import prompt_key

MAPPED = {"prompt": "question", "answer": "gold"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEMO_SPECRL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_tokenizer(resolve_model(ModelConfig(path="builtin:tiny", max_length=64)))


@pytest.fixture
def jsonl(tmp_path):
    def write(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        return str(path)

    return write


def load(tokenizer, source="arithmetic", max_length=512, max_new_tokens=64, **options):
    return load_prompt_data(DataConfig(source=source, **options), tokenizer, max_length, max_new_tokens)


def test_the_chat_template_is_applied_once(tokenizer, jsonl):
    source = jsonl({"prompt": "1 + 1", "answer": 2})
    data = load(tokenizer, source, system_prompt="Count.", prompt_template="Q: {prompt} {x}")
    (prompt,) = data.prompts
    assert tokenizer.decode(prompt.token_ids) == "<|system|>Count.<|user|>Q: 1 + 1 {x}<|assistant|>"
    assert prompt.token_ids.dtype == np.int32
    assert (prompt.answer, prompt.text, prompt.source) == ("2", "1 + 1", "default")
    assert prompt.key == prompt_key(prompt.token_ids)


def test_chat_messages_are_taken_as_they_are(tokenizer, jsonl):
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "2?"},
    ]
    source = jsonl({"prompt": messages, "answer": "2"})
    (prompt,) = load(tokenizer, source, system_prompt="ignored: a chat brings its own").prompts
    assert tokenizer.decode(prompt.token_ids) == "<|user|>hi<|assistant|>yo<eos><|user|>2?<|assistant|>"
    assert prompt.text == "2?"


def test_columns_are_mapped_and_the_source_kept(tokenizer, jsonl):
    source = jsonl({"question": "a", "gold": "1", "set": "gsm8k"}, {"question": "b", "gold": "2", "set": "aime"})
    prompts = load(tokenizer, source, columns=MAPPED | {"source": "set"}).prompts
    assert [(p.text, p.answer, p.source) for p in prompts] == [("a", "1", "gsm8k"), ("b", "2", "aime")]


GOOD = {"question": "a", "gold": "1"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "b", "answer": "1"}, r"row 1 has no column 'gold' for answer \(columns: question, answer\)"),
        ({"gold": "1"}, "row 1 has no column 'question' for prompt"),
        ({"question": "b", "gold": "  "}, "row 1 has an empty answer"),
        ({"question": "b", "gold": None}, "row 1 has the answer None"),
        ({"question": "b", "gold": True}, "row 1 has the answer True"),
        ('{"question": "b", "gold": NaN}', "row 1 has the answer nan: a missing value"),
        ('{"question": "b", "gold": -Infinity}', "row 1 has the answer -inf"),
        ('{"question": "b", "gold": 1e999}', "row 1 has the answer inf"),
        ({"question": "b", "gold": [1] * 9999}, r"row 1 has the answer \[1, 1, 1, 1, 1, 1, \.\.\.\]"),
        ('{"question": "b\\ud83d", "gold": "1"}', r"row 1 has half of a character \('\\ud83d'"),
        ('{"question": "b", "gold": "\\udc00"}', "row 1 has half of a character"),
        ('{"question": [{"role": "user", "content": "\\udc00"}], "gold": "1"}', "row 1 has half of a character"),
        ({"question": " ", "gold": "1"}, "row 1 has an empty prompt"),
        ({"question": [], "gold": "1"}, "row 1: its prompt is neither"),
        ({"question": [{"role": "user"}], "gold": "1"}, "message without text"),
        ({"question": [{"role": "assistant", "content": "x"}], "gold": "1"}, "assistant's own"),
        ("{broken", "line 2: not JSON"),
        ("[1]", "line 2: not an object"),
    ],
)
def test_bad_rows_are_named_before_anything_starts(tokenizer, jsonl, row, message):
    """verl#758 and others: a KeyError came after the rollouts had been paid for."""
    with pytest.raises(ValueError, match=message):
        load(tokenizer, jsonl(GOOD, row), columns=MAPPED)


def test_many_bad_rows_are_counted_and_some_named(tokenizer, jsonl):
    with pytest.raises(ValueError, match=r"8 of 9 rows.*row 5.*and 3 more rows.*data\.columns"):
        load(tokenizer, jsonl(GOOD, *[{"question": "b"}] * 8), columns=MAPPED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"prompt": "question"}}, "does not map answer"),
        ({"columns": MAPPED | {"reward": "r"}}, "data.columns maps reward"),
        ({"prompt_template": "no place"}, "must contain"),
        ({"enable_thinking": True, "columns": MAPPED}, "does not know it"),
        ({"limit": 0, "columns": MAPPED}, "has no rows"),
    ],
)
def test_impossible_settings(tokenizer, jsonl, options, message):
    with pytest.raises(ValueError, match=message):
        load(tokenizer, jsonl(GOOD), **options)


def test_a_missing_file(tokenizer):
    with pytest.raises(ValueError, match=r"no file .*rows\.jsonl"):
        load(tokenizer, "no/such/rows.jsonl")


def test_long_prompts_are_named_or_dropped(tokenizer, jsonl):
    source = jsonl({"prompt": "short", "answer": 1}, {"prompt": "x" * 50, "answer": 1})
    with pytest.raises(ValueError, match=r"1 of 2 prompts have more than 40 tokens \(rows 1\); the longest has 52"):
        load(tokenizer, source, max_prompt_tokens=40)
    with pytest.raises(ValueError, match="more than 36 tokens"):
        load(tokenizer, source, max_length=100, max_new_tokens=64)
    data = load(tokenizer, source, max_prompt_tokens=40, drop_long_prompts=True)
    assert ([p.text for p in data.prompts], data.dropped_long) == (["short"], 1)
    with pytest.raises(ValueError, match="none of 2"):
        load(tokenizer, source, max_prompt_tokens=3, drop_long_prompts=True)


def test_duplicates_are_kept_once_and_reported(tokenizer, jsonl, caplog):
    rows = [{"prompt": text, "answer": i} for i, text in enumerate("abab")]
    data = load(tokenizer, jsonl(*rows))
    assert [(p.text, p.answer) for p in data.prompts] == [("a", "0"), ("b", "1")]
    assert data.duplicates == 2
    assert "2 rows repeat an earlier prompt" in caplog.text


def test_a_prompt_with_two_answers_is_said(tokenizer, jsonl, caplog):
    rows = [("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", "x")]
    data = load(tokenizer, jsonl(*[{"prompt": text, "answer": answer} for text, answer in rows]))
    assert (data.duplicates, data.conflicts) == (3, 2)
    assert [(p.text, p.answer) for p in data.prompts] == [("a", "1"), ("b", "1")]
    assert "row 0 says '1', row 3 '2'; row 1 says '1', row 4 'x'" in caplog.text


TEMPLATES = [
    ("{% if %}", r"row 0: the chat template, line 1: TemplateSyntaxError"),
    ("\n{{ 1 / 0 }}", "ZeroDivisionError"),
    ("{{ raise_exception('System role not supported') }}", r"System role not supported.*data\.system_prompt=null"),
    ("{{ messages[5].content }}", "UndefinedError"),
    ("{{ 'a' + 1 }}", "TypeError"),
    ("{{ '' }}", "makes no tokens"),
]


@pytest.mark.parametrize(("template", "message"), TEMPLATES)
def test_a_template_that_fails_is_named_with_its_remedy(tokenizer, jsonl, monkeypatch, template, message):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(ValueError, match=message):
        load(tokenizer, jsonl({"prompt": "a", "answer": 1}), system_prompt="s")


def test_a_template_that_leaves_the_message_out(tokenizer, jsonl, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "hello")
    with pytest.raises(ValueError, match="the same tokens of 2 different rows"):
        load(tokenizer, jsonl({"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}))


def test_a_template_with_a_date_writes_the_one_it_is_given(tokenizer, jsonl, monkeypatch):
    """Today's date in a template changes every prompt's key at midnight, and reuse finds nothing any more."""
    monkeypatch.setattr(tokenizer, "chat_template", "{{ strftime_now('%d %b %Y %H') }}: {{ messages[0].content }}")
    config = DataConfig(source=jsonl({"prompt": "a", "answer": 1}))

    def text(day):
        (prompt,) = load_prompt_data(config, tokenizer, 512, 64, rendered_on=day).prompts
        return tokenizer.decode(prompt.token_ids)

    assert text(date(2024, 2, 29)) == "29 Feb 2024 00: a"
    assert text(None) == f"{date.today():%d %b %Y} 00: a"


def test_thinking_reaches_a_template_that_knows_it(tokenizer, jsonl, monkeypatch):
    template = "{{ messages[0]['content'] }}{% if enable_thinking is false %}!{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    source = jsonl({"prompt": "a", "answer": 1})
    assert len(load(tokenizer, source).prompts[0].token_ids) == 1
    assert len(load(tokenizer, source, enable_thinking=False).prompts[0].token_ids) == 2


def test_a_tokenizer_without_a_chat_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match="no chat template"):
        load(tokenizer)


def test_the_built_in_task(tokenizer):
    columns = {"prompt": "prompt", "answer": "answer", "source": "source"}
    data = load(tokenizer, size=16, columns=columns)
    assert (len(data.prompts), data.name, data.duplicates) == (16, "arithmetic", 0)
    assert {p.source for p in data.prompts} == {"1x2", "2x2"}
    assert load(tokenizer, size=16, columns=columns).identity.digest == data.identity.digest
    assert load(tokenizer, size=16, seed=1, columns=columns).identity.digest != data.identity.digest
    assert [p.key for p in load_prompts(DataConfig(size=16), tokenizer, 512, 64)] == [p.key for p in data.prompts]
