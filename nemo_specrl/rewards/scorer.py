"""`RewardConfig` -> scores of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from nemo_specrl.config.reward import RewardConfig
from nemo_specrl.contracts.sample import RewardResult
from nemo_specrl.rewards.base import load_reward
from nemo_specrl.rewards.pool import WorkerPool
from nemo_specrl.types import Prompt


class Scorer:
    """The configured reward in its worker processes. Close it, or use it in a `with` block."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._reward = load_reward(config.name)
        self._pool = WorkerPool(config.name, config.workers, config.timeout_s)

    def check(self, prompts: Iterable[Prompt]) -> None:
        """ValueError for the first prompt whose reference answer nothing could equal; call it before training."""
        for prompt in prompts:
            self._reward.check(prompt)

    def score(self, samples: Sequence[tuple[Prompt, str]]) -> list[RewardResult]:
        """One result for each (prompt, response text), in order.

        RuntimeError when more than `max_error_fraction` of them could not be scored: the verifier is broken then, and
        training on what is left would hide it.
        """
        results = self._pool.score([(text, prompt) for prompt, text in samples])
        failed = [(index, result) for index, result in enumerate(results) if not result.valid]
        if len(failed) > self._config.max_error_fraction * len(results):
            index, first = failed[0]
            raise RuntimeError(
                f"{len(failed)} of {len(results)} responses could not be scored by {self._config.name!r}; the first: "
                f"{first.error} (reference {samples[index][0].answer[:80]!r}, response {samples[index][1][-80:]!r}). "
                f"Repair the verifier, or raise reward.timeout_s or reward.max_error_fraction."
            )
        return results

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._pool.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
