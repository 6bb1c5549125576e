"""Weights of the policy, and of what rides it, to the engine in one session with a version stamp."""

from __future__ import annotations

from itertools import chain

from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.contracts.engine import Engine
from nemo_specrl.contracts.policy import Policy
from nemo_specrl.training.ranks import broadcast


def refit(policy: Policy, engine: Engine | None, drafter: Drafter) -> bool:
    """Make the engine sample from the present policy, and draft with its head; returns whether anything had to be
    sent. Collective; `engine` is None but on one rank.

    The engine's process starts with the model folder's own weights, which are version 0."""
    version = policy.version
    stale = broadcast(engine is not None and engine.version != version)
    if not stale:
        return False
    weights = chain(policy.weights(), *(companion.weights() for companion in policy.companions))
    if engine is not None:
        engine.refit(weights, version, drafter.refit_extras(policy.vocab_size))
    else:
        for _ in weights:  # the other ranks take part in the gathering
            pass
    return True
