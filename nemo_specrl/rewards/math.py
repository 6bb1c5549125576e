"""The `math` reward: 1 for the right answer, 0 for a wrong one or none."""

from __future__ import annotations

from nemo_specrl.contracts.sample import RewardResult
from nemo_specrl.rewards.answers import (
    equation_end,
    extract_answer,
    is_marked,
    last_number,
    only_number,
    plain_number,
    same_number,
)
from nemo_specrl.types import Prompt


class MathReward:
    """Plain numbers are compared exactly by code of our own; everything else goes to math-verify.

    Where the response marks its answer (`\\boxed{}`, "the answer is", "Answer:", "####") only that counts; otherwise
    the number or formula that it ends on. The reference answer may be marked in the same ways.
    """

    def warm_up(self) -> None:
        from nemo_specrl.rewards import symbolic

        symbolic.warm_up()

    def check(self, prompt: Prompt) -> None:
        """ValueError for a reference answer that no response could equal."""
        if not (extract_answer(prompt.answer) or "").strip("$ "):
            raise ValueError(
                f"the prompt {prompt.text[:60]!r} has the answer {prompt.answer!r}, which has nothing to compare with "
                f"(empty, or a \\boxed{{ without its closing brace). Repair the row."
            )

    def __call__(self, response: str, prompt: Prompt) -> RewardResult:
        self.check(prompt)
        return RewardResult(float(is_right(prompt.answer, response)))


def is_right(gold: str, response: str) -> bool:
    """Whether the response's answer is the reference's. Raises what the symbolic comparison raises."""
    reference, answer = extract_answer(gold), extract_answer(response)
    assert reference, gold
    if not answer:
        return False
    if answer == reference:
        return True
    expected = plain_number(reference)
    if expected is not None:
        # Only prose is searched for the number that it ends on: "#### 12 or 13" is two answers, and not 13.
        last = equation_end if is_marked(response) else last_number
        found = only_number(answer) or last(answer)
        if found is not None:
            return same_number(expected, found)
    from nemo_specrl.rewards.symbolic import symbolic_equal

    return symbolic_equal(reference, answer)
