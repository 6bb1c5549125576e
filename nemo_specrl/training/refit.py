"""Policy weights to the engine, with a version stamp."""

from __future__ import annotations

from nemo_specrl.training.parts import Parts
from nemo_specrl.training.ranks import broadcast


def refit(parts: Parts) -> bool:
    """Make the engine sample from the present policy; returns whether anything had to be sent. Collective.

    The engine's process starts with the model folder's own weights, which are version 0."""
    version = parts.policy.version
    stale = broadcast(parts.engine is not None and parts.engine.version != version)
    if not stale:
        return False
    weights = parts.policy.weights()
    if parts.engine is not None:
        parts.engine.refit(weights, version)
    else:
        for _ in weights:  # the other ranks take part in the gathering
            pass
    return True
