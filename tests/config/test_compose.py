"""Composition: every shipped option composes, every mistake has a hint, every field is documented."""

import dataclasses
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_specrl import cli
from nemo_specrl.config import compose as c
from nemo_specrl.config.reference import field_docs, reference
from nemo_specrl.config.run import RunConfig

NEEDS = {"data=jsonl": ["data.source=rows.jsonl"]}
OPTIONS = [f"{group}={option}" for group, options in c.groups().items() for option in options]
TOP = [path.stem for path in c.CONF_DIR.glob("*.yaml")]


@pytest.mark.parametrize("option", OPTIONS)
def test_every_shipped_option_composes_and_validates(option: str) -> None:
    assert isinstance(c.compose([option, *NEEDS.get(option, [])]), RunConfig)


@pytest.mark.parametrize("name", TOP)
def test_every_shipped_top_level_file_composes(name: str) -> None:
    assert isinstance(c.compose([], config_name=name), RunConfig)


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        (["reuse.tpok=3"], "reuse.topk"),
        (["reuse=lenien"], "lenient"),
        (["lr=1"], "policy.lr"),
        (["experimnt=x"], "experiment"),
        (["reuse.topk=abc"], "could not be converted to Integer"),
        (["policy.lr=null"], "policy.lr"),
        (["foo bar"], "key=value"),
        (["data=jsonl"], "data.source"),
        (["drafter.speculativ_config.x=1"], "drafter.speculative_config"),
        (["+tracking.foo=x"], r"unknown key 'tracking\.foo'\. Did you mean tracking\."),
        (["++tracking.foo.bar=x"], "unknown key 'tracking.foo'"),
        (["+x=1"], "unknown key 'x'"),
        (["+data.prompt_templat=1"], "data.prompt_template"),
        (["name=${nope}"], "'nope' not found"),
        (["name=${oc.env:NO_SUCH_VARIABLE}"], "NO_SUCH_VARIABLE"),
        (["name=${name}"], "Recursive"),
        (["tracking=null"], r"not what tracking=null says\. Groups: algorithm"),
        (["=3"], "not what =3 says"),
        (["reuse="], "no option '' in group 'reuse'.*lenient"),
        (["experiment=[exact,b]"], "no option 'b' in group 'experiment'"),
    ],
)
def test_mistakes_name_the_remedy(overrides: list[str], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        c.compose(overrides)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.prompt_template", "Solve: {prompt}"),
        ("data.prompt_template", "{prompt}, in $ it's \\boxed{`x`}!"),
        ("data.system_prompt", "Yes, do: (a"),
        ("data.system_prompt", "[1"),
        ("data.source", "a=b,c"),
        ("data.columns.prompt", "x{"),
    ],
)
def test_a_string_that_the_grammar_cannot_read_is_quoted_for_the_user(key: str, value: str) -> None:
    """What the message says to write, taken through a shell's quoting, gives the value."""
    with pytest.raises(ValueError, match="cannot read the override") as caught:
        c.compose([f"{key}={value}"])
    (override,) = shlex.split(str(caught.value).split("for the shell: ")[1])
    run: object = c.compose([override])
    for part in key.split("."):
        run = run[part] if isinstance(run, dict) else getattr(run, part)
    assert run == value


def test_open_dicts_take_new_keys_and_closed_ones_do_not() -> None:
    run = c.compose(["drafter.speculative_config.prompt_lookup_max=5", "engine.vllm_kwargs.swap_space=1"])
    assert run.drafter.speculative_config == {"prompt_lookup_max": 5}
    assert run.engine.vllm_kwargs == {"swap_space": 1}
    with pytest.raises(ValueError, match="unknown key"):
        c.compose(["policy.new=1"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{a:1,b:{c:[1,x]}}", {"a": 1, "b": {"c": [1, "x"]}}),
        ('{"a": 1, "b": {"c": [1, "x y", null, true]}}', {"a": 1, "b": {"c": [1, "x y", None, True]}}),
        ("""'{"a": 1}'""", {"a": 1}),
        ("null", {}),
        ("{}", {}),
    ],
)
def test_an_open_dict_may_be_given_whole_as_json_or_null(value: str, expected: dict[str, object]) -> None:
    """verl#3037, lm-eval#2882: a dict where a string was wanted, and the other way round; null is none."""
    assert c.compose([f"engine.vllm_kwargs={value}"]).engine.vllm_kwargs == expected


def test_what_is_no_dict_is_refused() -> None:
    with pytest.raises(ValueError, match="engine.vllm_kwargs"):
        c.compose(["engine.vllm_kwargs=3"])


def test_a_dumped_configuration_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """speculators#841: what --dump-config printed can be given back with --config-path."""
    assert cli.run(["train", "experiment=spec_rl_corrected", "drafter.speculative_config.a=1", "--dump-config"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    run = c.compose(["experiment=spec_rl_corrected", "drafter.speculative_config.a=1"])
    assert c.compose([], config_dir=tmp_path, config_name="mine") == run
    assert c.compose(["seed=3"], config_dir=tmp_path, config_name="mine") == dataclasses.replace(run, seed=3)


def test_a_file_of_another_version_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("polcy:\n  lr: 1\n")
    with pytest.raises(ValueError, match="not a configuration of this version"):
        c.compose([], config_dir=tmp_path, config_name="old")


def test_resolved_dump_reloads_to_the_same_run() -> None:
    run = c.compose(["experiment=spec_rl", "data.digits=[1,3]", "drafter.speculative_config.a=1"])
    assert c.load_resolved(json.loads(json.dumps(c.resolved(run)))) == run


def test_resolved_dump_of_another_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a configuration"):
        c.load_resolved({"nonsense": 1})


def test_every_field_has_a_docstring_and_can_be_overridden() -> None:
    for key, item, cls in c.schema_keys():
        assert field_docs(cls).get(item.name), f"{key} has no docstring"
    tree = c.compose_tree([])
    for key, _, _ in c.schema_keys():
        node = tree
        for part in key.split(".")[:-1]:
            node = node[part]
        assert key.split(".")[-1] in node


def test_runs_are_frozen() -> None:
    run = c.compose([])
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.seed = 1  # type: ignore[misc]


def test_config_rooms_import_no_torch() -> None:
    code = "import sys; from nemo_specrl.config.compose import compose; compose([]); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_reference_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == reference(), "run `make docs`"
