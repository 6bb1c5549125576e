"""A Hydra command line, taken apart: group=option, key=value, and the few flags that there are."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig

from nemo_specrl.config.compose import CONF_DIR, CONFIG_NAME, compose_tree


@dataclass(frozen=True)
class Arguments:
    """What was said on a command line."""

    overrides: list[str]
    config_dir: Path
    config_name: str
    dump: bool
    """Only print the resolved configuration."""


USAGE = "nemo-specrl VERB [group=option ...] [key=value ...] [--config-path DIR] [--config-name NAME] [--dump-config]"


class Parser(argparse.ArgumentParser):
    """Mistakes are ValueErrors, like all of the user's, and end with the usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {' '.join(self.format_usage().split())}")


def parse(args: list[str]) -> Arguments:
    """Overrides and the flags that we know; ValueError for others."""
    parser = Parser(usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("--config-path", default=str(CONF_DIR))
    parser.add_argument("--config-name", default=CONFIG_NAME)
    parser.add_argument("--dump-config", action="store_true")
    options, overrides = parser.parse_known_args(args)
    if unknown := [word for word in overrides if word.startswith("-")]:
        raise ValueError(f"unknown option {unknown[0]}: there are --config-path, --config-name and --dump-config")
    return Arguments(overrides, Path(options.config_path).resolve(), options.config_name, options.dump_config)


def compose_arguments(args: list[str]) -> tuple[Arguments, DictConfig]:
    """The composed tree of a command line; errors name the nearest valid key."""
    parsed = parse(args)
    return parsed, compose_tree(parsed.overrides, config_dir=parsed.config_dir, config_name=parsed.config_name)
