"""The acceptance rules of reuse, and what must be known of each before any of them is loaded. A new rule is one line
here and one class (speculation/acceptance.py says what a rule is)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleFacts:
    """One rule, as configuration and speculation see it."""

    target: str
    """package.module:Class"""
    exact: bool
    """Kept and replaced tokens have the policy's law; proved by enumeration (tests/speculation)."""
    needs_topk: bool = False
    """Cached rollouts must come with their law's candidates."""
    verifies: bool = True
    """False: it never looks at the policy."""
    drawn_only: bool = False
    """p of the drawn tokens is all that it needs: an engine's prompt log-probs will do."""
    takes_lenience: bool = False
    """reuse.log_lenience means something; its law is then known, and the loss can be told (reuse.correction)."""


_HERE = "nemo_specrl.speculation.acceptance:"
RULES: dict[str, RuleFacts] = {
    "off": RuleFacts("", exact=True, verifies=False),
    "lenient": RuleFacts(f"{_HERE}Lenient", exact=False, drawn_only=True, takes_lenience=True),
    "exact": RuleFacts(f"{_HERE}Exact", exact=True, needs_topk=True),
    "block": RuleFacts(f"{_HERE}Block", exact=True, needs_topk=True),
    "one_hot": RuleFacts(f"{_HERE}OneHot", exact=True, drawn_only=True),
    "full": RuleFacts(f"{_HERE}Full", exact=False, verifies=False),
    "random": RuleFacts(f"{_HERE}Random", exact=False, verifies=False),
}
"""reuse.rule -> its facts. `off` has no class: nothing is reused."""
