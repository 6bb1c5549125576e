"""Hydra composition: groups and overrides in, a validated `RunConfig` out. No torch."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import shlex
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import nemo_specrl
from nemo_specrl.config.hardware import with_dtypes
from nemo_specrl.config.run import RunConfig
from nemo_specrl.config.validate import validate

CONF_DIR = Path(nemo_specrl.__file__).resolve().parent / "conf"
CONFIG_NAME = "config"
SCHEMA_NAME = "run_schema"
_HYDRA_WORDS = ("null", "true", "false", "nan", "inf")


@functools.cache
def register_schema() -> None:
    """Put the dataclasses into Hydra's store, so that every field exists, is typed and can be overridden.

    OmegaConf makes frozen dataclasses read-only, also while Hydra still merges files into them: thaw the schema here;
    `to_run_config` gives frozen objects again."""
    schema = OmegaConf.structured(RunConfig)
    _thaw(schema)
    ConfigStore.instance().store(name=SCHEMA_NAME, node=schema)


def compose(
    overrides: Sequence[str] = (), *, config_dir: Path | None = None, config_name: str = CONFIG_NAME
) -> RunConfig:
    """The run that these Hydra overrides describe. ValueError, with the nearest valid name, when they don't fit."""
    return to_run_config(compose_tree(overrides, config_dir=config_dir, config_name=config_name))


def compose_tree(
    overrides: Sequence[str] = (), *, config_dir: Path | None = None, config_name: str = CONFIG_NAME
) -> DictConfig:
    """As `compose`, before the conversion to dataclasses."""
    register_schema()
    GlobalHydra.instance().clear()
    folder = (config_dir or CONF_DIR).resolve()
    if not folder.is_dir():
        raise ValueError(f"no configuration folder {folder}: give an existing one with --config-path")
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            return cast(DictConfig, hydra_compose(config_name, overrides=[open_dict_override(o) for o in overrides]))
    except (ConfigCompositionException, MissingConfigException, OverrideParseException) as error:
        raise ValueError(explain(error, overrides)) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # a ValueError for `group=null` and `=x`
        raise ValueError(explain(error, overrides)) from error


def to_run_config(tree: DictConfig) -> RunConfig:
    """Frozen dataclasses from a composed tree, validated across fields."""
    if OmegaConf.get_type(tree) is not RunConfig:  # the output of --dump-config, or a file without `run_schema`
        tree = _on_schema(tree)
    known = [name for name, _, _ in schema_keys()]
    if unknown := sorted(_undeclared(tree, RunConfig)):  # `+key=value` adds what no dataclass has
        raise ValueError(f"unknown key '{unknown[0]}'. {did_you_mean(unknown[0], known)}")
    try:
        if missing := sorted(OmegaConf.missing_keys(tree)):
            raise ValueError(f"no value for {', '.join(missing)}: give {missing[0]}=...")
        run = OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        raise ValueError(str(error)) from error
    assert isinstance(run, RunConfig)
    frozen = with_dtypes(cast(RunConfig, _with_tuples(run)))
    validate(frozen)
    return frozen


def resolved(run: RunConfig) -> dict[str, Any]:
    """The run as plain nested data, as it is dumped beside the run and can be loaded again."""
    return dataclasses.asdict(run)


def load_resolved(values: dict[str, Any]) -> RunConfig:
    """The run that `resolved` dumped."""
    return to_run_config(OmegaConf.create(values))


def _on_schema(tree: DictConfig) -> DictConfig:
    """Plain data as a typed tree. ValueError for what is no run of this version."""
    schema = OmegaConf.structured(RunConfig)
    _thaw(schema)
    try:
        return cast(DictConfig, OmegaConf.merge(schema, tree))
    except OmegaConfBaseException as error:
        raise ValueError(f"not a configuration of this version of nemo-specrl: {error}") from error


def _undeclared(tree: DictConfig, cls: type, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the tree that the dataclass does not declare."""
    hints = typing.get_type_hints(cls)
    for key in map(str, tree):
        if key not in hints:
            yield f"{prefix}{key}"
        elif dataclasses.is_dataclass(hints[key]) and isinstance(node := tree._get_node(key), DictConfig):
            yield from _undeclared(node, hints[key], f"{prefix}{key}.")


def schema_keys(cls: type = RunConfig, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], type]]:
    """Every (dotted key, field, owning dataclass) of the schema, in order."""
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        name = f"{prefix}{item.name}"
        if dataclasses.is_dataclass(hints[item.name]):
            yield from schema_keys(hints[item.name], f"{name}.")
        else:
            yield name, item, cls


def open_dict_override(override: str) -> str:
    """`a.b.new=1` -> `++a.b.new=1` where a.b is declared as an open dict; everything else unchanged.

    The whole dict may be given, too: `a.b={new: 1}`, the same as JSON, or null for none."""
    key, equals, value = override.partition("=")
    if f"{key}." in _open_dicts() and equals:
        return f"++{key}={_hydra_dict(value)}"
    return f"++{override}" if override.startswith(_open_dicts()) else override


def _hydra_dict(value: str) -> str:
    """JSON's object or null in Hydra's notation; anything else unchanged."""
    try:
        given = json.loads(value.strip("'"))
    except json.JSONDecodeError:
        return value
    if given is None:
        return "{}"
    return _hydra_value(given) if isinstance(given, dict) else value


def _hydra_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra_value, value)) + "]"
    return hydra_quote(value) if isinstance(value, str) else json.dumps(value)


def hydra_quote(value: str) -> str:
    """A string as Hydra's override grammar reads it back."""
    if re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*", value) and value.lower() not in _HYDRA_WORDS:
        return value
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


@functools.cache
def _open_dicts() -> tuple[str, ...]:
    return tuple(f"{name}." for name, item, _ in schema_keys() if str(item.type).startswith("dict["))


def groups() -> dict[str, list[str]]:
    """The shipped configuration groups and their options."""
    return {
        folder.name: sorted(path.stem for path in folder.glob("*.yaml"))
        for folder in sorted(CONF_DIR.iterdir())
        if folder.is_dir()
    }


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's message, with the nearest valid key or option where a name was not found."""
    text = str(error)
    cause = error.__cause__
    if cause is not None and str(cause) not in text:
        text = f"{text}: {cause}"
    if key := re.search(r"Could not override '([^']+)'", text):
        return f"unknown key '{key[1]}'. {did_you_mean(key[1], [*(name for name, _, _ in schema_keys()), *groups()])}"
    if option := re.search(r"Could not (?:find|load) '([^'/]+)/([^']*)'", text):
        known = groups().get(option[1], [])
        return f"no option '{option[2]}' in group '{option[1]}'. {did_you_mean(option[2], known)}"
    if "Config group override must be" in text:  # `tracking=null`; Hydra names neither the group nor the override
        said = [o for o in overrides if o.partition("=")[0].strip("+~") in ("", *groups())]
        return f"a group takes the name of an option, not what {' '.join(said)} says. Groups: {', '.join(groups())}"
    if group := re.search(r"Could not override '([^']+)'|No match in the defaults list", text):
        return f"{text.splitlines()[0]} Groups: {', '.join(groups())} ({group[0]})"
    if isinstance(error, OverrideParseException):
        given = next((o for o in overrides if open_dict_override(o) == error.override), error.override)
        return _how_to_write(given, text.splitlines()[0])
    if ambiguous := re.match(r"Ambiguous value for argument '(.*)'", text):
        return _how_to_write(ambiguous[1], "a comma makes a sweep, which no run is; for a list write [a,b]")
    return text


def _how_to_write(override: str, fault: str) -> str:
    """An override that Hydra's grammar cannot read, and how a shell passes its value as a string."""
    key, equals, value = override.partition("=")
    if not equals or not key.strip("+~"):
        return f"cannot read the override {override}: {fault}. Write key=value or group=option."
    words = f"{key}={hydra_quote(value.strip())}"
    shell = shlex.quote(words) if set(words) & set('$`"\\!') else f'"{words}"'
    return (
        f"cannot read the override {override}: {fault}. Braces, brackets, commas, colons, equals signs and quotes "
        f"belong to Hydra's grammar: quote a string with any of them for Hydra, and the whole for the shell: {shell}"
    )


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint: near names first, else the whole list."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    leaf = name.rsplit(".", 1)[-1]
    near += [key for key in known if key.rsplit(".", 1)[-1] == leaf and key not in near]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    section = [key for key in known if key.split(".")[0] == name.split(".")[0]]
    return f"Known: {', '.join(section or known)}"


def _thaw(node: DictConfig) -> None:
    node._set_flag("readonly", None)
    for key in node:
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            _thaw(child)


def _with_tuples(value: Any) -> Any:
    """OmegaConf gives lists for tuple fields: make them tuples again, all the way down."""
    hints = typing.get_type_hints(type(value))
    changes = {}
    for item in dataclasses.fields(value):
        inner = getattr(value, item.name)
        if dataclasses.is_dataclass(inner):
            changes[item.name] = _with_tuples(inner)
        elif isinstance(inner, list) and typing.get_origin(hints[item.name]) is tuple:
            changes[item.name] = tuple(inner)
    return dataclasses.replace(value, **changes)
