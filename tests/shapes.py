"""Array shapes as they are annotated, checked at every call.

The package itself needs no jaxtyping at run time: its annotations are strings. Here they are read and enforced."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from beartype import beartype

_SHAPED = re.compile(r"\b(Float|Int|Bool)\[")
_ARRAYS = {"Probs": np.ndarray, "Ids": np.ndarray, "FloatArray": np.ndarray, "IntArray": np.ndarray, "torch": torch}


def enforce(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> int:
    """Check every annotated shape of the module's functions, methods and dataclasses from now on; how many are."""
    found = [(owner, name, function, _shaped(function, module)) for owner, name, function in _functions(module)]
    for owner, name, function, shaped in found:
        if shaped:
            monkeypatch.setattr(owner, name, _checked(function, shaped))
    return sum(bool(shaped) for *_, shaped in found)


def _functions(module: ModuleType) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            yield module, name, value
        elif inspect.isclass(value):
            own = {k: v for k, v in vars(value).items() if inspect.isfunction(v)}
            if dataclasses.is_dataclass(value):
                own["__init__"] = value.__init__
            yield from ((value, attribute, method) for attribute, method in own.items())


def _shaped(function: Callable[..., Any], module: ModuleType) -> dict[str, Any]:
    """The annotations that state a shape, evaluated; the others are left out."""
    names = {**vars(module), **vars(jaxtyping), **_ARRAYS}
    texts = {name: text for name, text in function.__annotations__.items() if _SHAPED.search(str(text))}
    return {name: eval(text, names) for name, text in texts.items()}


def _checked(function: Callable[..., Any], shaped: dict[str, Any]) -> Callable[..., Any]:
    """`function`, with its shapes checked by a shell that has the shaped arguments alone, and what shapes refer to."""
    signature = inspect.signature(function)
    space: dict[str, Any] = {}
    names = list(signature.parameters)
    exec(
        f"def shell(args, kwargs, {', '.join(names)}): return function(*args, **kwargs)", {"function": function}, space
    )
    shell = space["shell"]
    shell.__annotations__ = shaped
    check = jaxtyping.jaxtyped(typechecker=beartype)(shell)

    def called(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return check(args, kwargs, **given.arguments)

    return called
