"""Sampled rollouts as part of a page: the data as JSON, which `rollouts.js` shows as text and never as markup."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from html import escape

from nemo_specrl.contracts.sample import WRITERS
from nemo_specrl.reporting.rollout_log import Step

BUDGET = 6 * 2**20
"""Bytes of rollouts in a page; of a longer run an even choice of steps."""
EXPLAINED = {
    "r": "taken over from an earlier rollout of the prompt, without being generated again",
    "x": "drawn by the verification, where a reused token was rejected",
    "d": "proposed by the drafter and accepted by the engine's verifier",
    "g": "sampled by the engine itself",
    "u": "by the engine, which did not say whether it was drafted",
}
READING = "Colours say who wrote each token: "
UNTOLD = (
    " Drafted tokens are told apart by what each engine step gave; a response's last token counts as generated where "
    "the engine does not count speculation for each request (vLLM before 0.32)."
)


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
        f'<div class="writers">{keys}</div><p class="soft">{escape(legend(found))}</p><div class="cards"></div>'
        '<button type="button" class="more" hidden>show more</button></div>'
    )


def legend(found: Collection[str]) -> str:
    """What the colours of these letters mean, in words."""
    said = "; ".join(f"{WRITERS[letter]}: {text}" for letter, text in EXPLAINED.items() if letter in found)
    return f"{READING}{said}.{UNTOLD if 'd' in found else ''}"


def embedded(value: object) -> str:
    """JSON that is safe inside a script element, whatever text it holds: pure ASCII, no markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
