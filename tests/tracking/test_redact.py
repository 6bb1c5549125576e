"""Secrets are never recorded (DEMANDS 89)."""

from __future__ import annotations

import pytest

from nemo_specrl.tracking.redact import REDACTED, is_secret_name, redact, redact_patch, redact_text


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "password", "db.password", "AWS_SECRET_ACCESS_KEY", "hub_token", "auth"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["max_prompt_tokens", "tokenizer", "num_draft_tokens", "token_ids", "micro_batch_tokens", "author", "keys"]
)
def test_names_that_only_look_like_it(name: str) -> None:
    assert not is_secret_name(name)


def test_nested_values_keep_their_shape() -> None:
    values = {"uri": "postgresql://me:hunter2@db/mlflow", "hub": {"token": "abc", "n": 3}, "list": ["hf_" + "a" * 30]}
    assert redact(values) == {
        "uri": f"postgresql://{REDACTED}@db/mlflow", "hub": {"token": REDACTED, "n": 3}, "list": [REDACTED],
    }  # fmt: skip


def test_values_of_secret_variables_are_found_anywhere() -> None:
    text = redact_text("--header=s3cr3t-value-1 --lr=1", {"MY_API_KEY": "s3cr3t-value-1", "HOME": "--lr=1--"})
    assert text == f"--header={REDACTED} --lr=1"


def test_a_short_value_is_no_pattern() -> None:
    assert redact_text("a=1, b=1", {"X_TOKEN": "1"}) == "a=1, b=1"


@pytest.mark.parametrize(
    "secret", ["sk-" + "a1" * 12, "ghp_" + "Z" * 36, "nvapi-" + "x" * 40, "AKIA" + "B" * 16, "glpat-" + "q" * 20]
)
def test_well_known_shapes(secret: str) -> None:
    assert secret not in redact_text(f"x {secret} y", {})


def test_a_patch_that_spells_a_secret_out() -> None:
    patch = '+HF_TOKEN = "correct-horse-battery"\n+max_tokens = 123456789\n+password: "staple1234"\n'
    assert redact_patch(patch) == (f'+HF_TOKEN = "{REDACTED}"\n+max_tokens = 123456789\n+password: "{REDACTED}"\n')
