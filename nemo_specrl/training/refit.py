"""Weights of the policy, and of its draft head, to the engine in one session with a version stamp."""

from __future__ import annotations

from itertools import chain

from nemo_specrl.training.parts import Parts
from nemo_specrl.training.ranks import broadcast


def refit(parts: Parts) -> bool:
    """Make the engine sample from the present policy, and draft with its head; returns whether anything had to be
    sent. Collective.

    The engine's process starts with the model folder's own weights, which are version 0."""
    version = parts.policy.version
    stale = broadcast(parts.engine is not None and parts.engine.version != version)
    if not stale:
        return False
    weights = chain(parts.policy.weights(), parts.policy.draft_weights())
    if parts.engine is not None:
        parts.engine.refit(weights, version, parts.tokens.shortlist(parts.run.drafter, parts.policy.vocab_size))
    else:
        for _ in weights:  # the other ranks take part in the gathering
            pass
    return True
