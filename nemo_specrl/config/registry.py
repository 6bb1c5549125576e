"""Names to classes: a registry is a dict of `name: "package.module:Class"`. A new entry is one line, and looking a name
up imports nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def resolve(registry: Mapping[str, str], name: str, key: str, *, default: str | None = None) -> Any:
    """What is registered as `name`, or what "package.module:Class" names; else `default`, where there is one.

    ValueError, with `key` (the configuration's) and the known names, where there is none or it cannot be imported."""
    target = registry.get(name, name if ":" in name else default)
    if target is None:
        raise ValueError(
            f"{key}={name!r}: there are {', '.join(registry)}. For one of your own write 'package.module:Class'."
        )
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{key}={name!r} cannot be loaded: {error}. Is it on the PYTHONPATH?") from error
