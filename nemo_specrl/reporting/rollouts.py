"""Sampled rollouts as part of a page: the data as JSON, which `rollouts.js` shows as text and never as markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from nemo_specrl.contracts.sample import WRITERS
from nemo_specrl.reporting.rollout_log import Step

BUDGET = 6 * 2**20
"""Bytes of rollouts in a page; of a longer run an even choice of steps."""
EXPLAINED = {
    "r": "taken over from an earlier rollout of the prompt, without being generated again",
    "x": "drawn by the verification where the first reused token was rejected",
    "d": "proposed by the drafter and accepted by the engine",
    "g": "sampled by the engine itself",
    "u": "sampled by the engine; whether a draft was accepted here is not recorded",
}


def rollouts_section(steps: Sequence[Step]) -> str:
    """The section with its controls; empty without a rollout."""
    if not any(step["rollouts"] for step in steps):
        return ""
    found = {letter for step in steps for rollout in step["rollouts"] for letter in rollout["by"]}
    keys = "".join(
        f'<span class="writer" title="{escape(EXPLAINED[letter])}"><span class="t {letter}">{escape(name)}</span>'
        f'<span class="soft" data-share="{letter}"></span></span>'
        for letter, name in WRITERS.items()
        if letter in found
    )
    options = "".join(f'<option value="{i}">step {step["step"]}</option>' for i, step in enumerate(steps))
    return (
        '<h2 id="rollouts">Rollouts</h2><noscript><p class="soft">This part needs JavaScript.</p></noscript>'
        f'<script type="application/json" id="rollout-data">{embedded(steps)}</script>'
        '<div class="reader"><div class="bar"><button type="button" data-go="-1" aria-label="earlier step">&#8592;'
        '</button><select aria-label="step"><option value="all">all steps</option>'
        f'{options}</select><button type="button" data-go="1" aria-label="later step">&#8594;</button>'
        '<span class="chips"></span><input type="search" placeholder="find in text" aria-label="find in text"></div>'
        f'<div class="writers">{keys}</div><div class="cards"></div>'
        '<button type="button" class="more" hidden>show more</button></div>'
    )


def embedded(value: object) -> str:
    """JSON that is safe inside a script element, whatever text it holds: pure ASCII, no markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
