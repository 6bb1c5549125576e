"""What the docs and the error messages tell people to type exists: commands compose, keys and options are real."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_specrl import cli
from nemo_specrl.commands.bench import split_arms
from nemo_specrl.config.arguments import parse
from nemo_specrl.config.compose import compose, compose_tree, groups, schema_keys

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted((ROOT / "nemo_specrl").rglob("*.py"))
KEYS = {key for key, _, _ in schema_keys()}
OPEN = tuple(f"{key}." for key, item, _ in schema_keys() if str(item.type).startswith("dict["))
SECTIONS = {key.split(".")[0] for key in KEYS if "." in key}
PREFIXES = {".".join(key.split(".")[:n]) for key in KEYS for n in range(1, key.count(".") + 2)}

COMMAND = re.compile(r"nemo[-_]specrl(?:\.cli|:cpu)?\s+(train|bench|verify|eval|submit|prepare|preflight)\b(.*)")
OVERRIDE = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)=([^\s`]+)`")
KEY = re.compile(r"(?<![\w./*-])(" + "|".join(SECTIONS) + r")((?:\.[a-z_]+)+)(?![\w.]*\()")
NOT_KEYS = re.compile(
    r"model\.(layers|mtp_layers|norm|embed_tokens|safetensors|digest)|\w+\.(png|json|log|jsonl)$|tracking\.base|gate\.verdict"
)
"""Tensors of a checkpoint, files and tags, which look like keys."""


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """(page, verb, arguments) of every command line that is shown."""
    texts = {page.name: page.read_text() for page in [*PAGES, ROOT / "Makefile"]} | {"cli.USAGE": cli.USAGE}
    for name, text in texts.items():
        for line in text.replace("\\\n", "").splitlines():  # a command may go on in the next line
            for shown in re.split(r"\s{3,}(?=nemo-specrl)", line):
                if "`" not in shown and (found := COMMAND.search(shown)):
                    yield name, found[1], shlex.split(found[2], comments=True)


SHOWN = list(commands())


def test_commands_are_found() -> None:
    assert {name for name, _, _ in SHOWN} >= {"README.md", "slurm.md", "compare.md", "Makefile", "cli.USAGE"}
    assert {verb for _, verb, _ in SHOWN} >= {"train", "bench", "verify", "submit", "preflight"}


@pytest.mark.parametrize(("page", "verb", "arguments"), SHOWN, ids=[f"{p}: {v} {' '.join(a)}" for p, v, a in SHOWN])
def test_every_command_that_is_shown_composes(page: str, verb: str, arguments: list[str]) -> None:
    parsed = parse([word for word in arguments if word != "--dry-run"])
    arms = [arm.overrides for arm in split_arms(parsed.overrides)] if verb == "bench" else [parsed.overrides]
    for overrides in arms:
        compose(overrides, config_dir=parsed.config_dir, config_name=parsed.config_name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_override_in_the_prose_is_one(page: Path) -> None:
    for key, value in OVERRIDE.findall(page.read_text()):
        if key in PREFIXES or key in groups() or key.startswith(OPEN):
            compose_tree([f"{key}={value}"])
        else:
            assert key.split(".")[0] not in SECTIONS, f"{page.name}: there is no key {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_in_the_docs_exists(page: Path) -> None:
    assert unknown(page.read_text()) == []


def test_every_key_in_messages_and_docstrings_exists() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert unknown(node.value) == [], f"{path.relative_to(ROOT)}:{node.lineno}"


def test_a_key_that_is_gone_is_noticed() -> None:
    assert unknown("set reuse.top_k, or drafter.head.dept=2; drafter.speculative_config.x and policy.lr are fine") == [
        "reuse.top_k",
        "drafter.head.dept",
    ]


def unknown(text: str) -> list[str]:
    """What looks like a key of ours in `text` and is none."""
    names = [section + rest for section, rest in KEY.findall(text)]
    return [n for n in names if n not in PREFIXES and not n.startswith(OPEN) and not NOT_KEYS.match(n)]
