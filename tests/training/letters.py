"""A reward that a random model can learn within a few steps: the share of lower-case letters."""

from nemo_specrl.rewards import RewardResult
from nemo_specrl.types import Prompt


class LowerCaseShare:
    def warm_up(self) -> None:
        return None

    def check(self, prompt: Prompt) -> None:
        return None

    def __call__(self, response: str, prompt: Prompt) -> RewardResult:
        return RewardResult(sum(c.islower() for c in response) / max(len(response), 1))
