"""Drafters: a file each, and a line here. No torch at import."""

from __future__ import annotations

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.config.registry import resolve
from nemo_specrl.contracts.drafter import Drafter

DRAFTERS: dict[str, str] = {
    "off": "nemo_specrl.drafting.off:Off",
    "ngram": "nemo_specrl.drafting.ngram:Ngram",
    "history": "nemo_specrl.drafting.history:History",
    "mtp": "nemo_specrl.drafting.mtp:Mtp",
}
"""drafter.method -> where its class is."""
OTHERS = "nemo_specrl.drafting.passed_on:PassedOn"
"""Any other method is vLLM's business."""


def make_drafter(config: DrafterConfig) -> Drafter:
    """The configured drafter. ValueError for a class of the user's own that cannot be loaded."""
    drafter: Drafter = resolve(DRAFTERS, config.method, "drafter.method", default=OTHERS)(config)
    return drafter
