"""Where drafters of our own meet the engine: their settings, and the rollouts that they learn from.

vLLM builds a `custom_class` proposer itself, in whichever process its worker lives, and hands it nothing of ours.
So the settings travel in an environment variable, which forked and spawned workers inherit alike, and a proposer that
learns from finished rollouts registers itself here, in its own process.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Protocol

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.types import Rollout

_VARIABLE = "NEMO_SPECRL_DRAFTER"


class Observer(Protocol):
    """Something that learns from finished rollouts."""

    def observe(self, rollouts: Sequence[Rollout]) -> None: ...


_observers: list[Observer] = []


def configure(drafter: DrafterConfig) -> None:
    """Make the settings readable for proposers; called before vLLM's engine is built."""
    os.environ[_VARIABLE] = json.dumps(dataclasses.asdict(drafter))


def settings() -> DrafterConfig:
    """What `configure` was given, in this process or in an ancestor. RuntimeError when it was never called."""
    text = os.environ.get(_VARIABLE)
    if text is None:
        raise RuntimeError("drafters.configure() was not called: this proposer runs only inside our engine process")
    return DrafterConfig(**json.loads(text))


def register(observer: Observer) -> None:
    """Called by a proposer when vLLM builds it."""
    _observers.append(observer)


def observe(rollouts: Sequence[Rollout]) -> None:
    """Hand finished rollouts to every proposer of this process."""
    for observer in _observers:
        observer.observe(rollouts)
