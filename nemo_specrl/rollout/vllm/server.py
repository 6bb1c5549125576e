"""The engine's process: `python -m nemo_specrl.rollout.vllm.server FD PARENT_PID`. It serves calls until its parent is
gone, and holds vLLM in-process."""

from __future__ import annotations

import functools
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.contracts.engine import Completion, SpecCounters
from nemo_specrl.drafting import make_drafter
from nemo_specrl.processes import die_with
from nemo_specrl.rollout.vllm import drafters
from nemo_specrl.rollout.vllm.channel import Raised, Reply
from nemo_specrl.rollout.vllm.outputs import completion, counters, response_logprobs
from nemo_specrl.rollout.vllm.step_sizes import StepSizes
from nemo_specrl.types import FloatArray, IntArray, Rollout


class Server:
    """vLLM and what is asked of it."""

    def __init__(self, arguments: dict[str, Any], sampling: dict[str, Any], drafter: DrafterConfig) -> None:
        drafters.configure(drafter)
        import vllm

        self._sampling = sampling
        self._drafts = make_drafter(drafter).drafts
        self._llm = vllm.LLM(**arguments)
        # The workers of a tensor-parallel engine are other processes, which this one's setting did not reach.
        self._llm.collective_rpc("specrl_configure", args=(drafter,))
        self._steps = StepSizes(self._llm.llm_engine)

    def generate(
        self,
        requests: Sequence[tuple[list[int], int, int]],
        topk: int,
        progress: Callable[[int], None],
    ) -> list[Completion]:
        """requests: (context ids, max new tokens, seed)."""
        from vllm import SamplingParams

        def params(max_tokens: int, seed: int) -> Any:
            return SamplingParams(**self._sampling, max_tokens=max_tokens, seed=seed, logprobs=topk)

        if self._drafts:
            # Another stream than any request's own, and the same whenever these requests are made.
            seed = np.random.SeedSequence([seed for *_, seed in requests]).generate_state(1, np.uint64)[0]
            self._llm.collective_rpc("specrl_seed", args=(int(seed),))
        jobs = [(context, params(max_tokens, seed)) for context, max_tokens, seed in requests]
        return [completion(out, topk, sizes) for out, sizes in self._run(jobs, progress)]

    def score(self, rows: Sequence[tuple[list[int], int]]) -> list[FloatArray]:
        """rows: (prompt + response ids, response length T). [T] raw log-probabilities for each."""
        from vllm import SamplingParams

        # The prefix cache would leave out the positions that it serves; newer versions skip it by themselves.
        params = SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, flat_logprobs=True, skip_reading_prefix_cache=True
        )
        outputs = self._run([(ids, params) for ids, _ in rows], lambda done: None)
        return [response_logprobs(out, n) for (out, _), (_, n) in zip(outputs, rows, strict=True)]

    def _run(
        self, jobs: Sequence[tuple[list[int], Any]], progress: Callable[[int], None]
    ) -> list[tuple[Any, list[int]]]:
        """Finished vLLM outputs and the tokens of each engine step, in the order of the jobs."""
        prompts = [{"prompt_token_ids": token_ids} for token_ids, _ in jobs]
        outputs: list[Any] = self._llm.generate(
            prompts, [params for _, params in jobs], use_tqdm=functools.partial(_progress_bar, progress)
        )
        return [(output, self._steps.take(output.request_id)) for output in outputs]

    @property
    def unfinished(self) -> bool:
        """Whether a call left requests behind, whose outputs the next call would mistake for its own."""
        return bool(self._llm.llm_engine.has_unfinished_requests())

    def refit(self, folder: str, extras: dict[str, IntArray]) -> list[dict[str, Any]]:
        """Load the weights that arrive in `folder` (worker.RefitExtension) and forget every cached prefix."""
        reports: list[dict[str, Any]] = self._llm.collective_rpc("specrl_refit", args=(folder, extras))
        if not self._llm.reset_prefix_cache():
            reports[0]["problems"].append("the prefix cache could not be reset: it holds the old weights' keys")
        return reports

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Hand finished rollouts to the proposers."""
        self._llm.collective_rpc("specrl_observe", args=(rollouts,))

    def counters(self) -> SpecCounters:
        """Speculation counters since start."""
        return counters(self._llm.get_metrics())

    def shutdown(self) -> None:
        """End vLLM's own processes, where it has any."""
        self._llm.llm_engine.engine_core.shutdown()


def _progress_bar(report: Callable[[int], None], *args: Any, **kwargs: Any) -> Any:
    """What vLLM takes for its tqdm: draws nothing, reports how many requests are finished."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def update(self, n: float | None = 1) -> Any:
            drawn = super().update(n)
            if kwargs.get("desc") == "Processed prompts":
                report(int(self.n))
            return drawn

    return Bar(*args, **{**kwargs, "file": io.StringIO()})


def serve(conn: Connection, build: Callable[..., Any]) -> None:
    """Answer calls until `close` or until the other end is gone. The first call must be `start`: build(*args)."""
    server: Any = None
    while True:
        try:
            method, args = conn.recv()
        except (EOFError, ConnectionError):
            return
        if method == "close":
            if server is not None:
                server.shutdown()
            return
        try:
            if method == "start":
                server, result = build(*args), None
            elif method == "generate":
                result = server.generate(*args, lambda done: conn.send(Reply("progress", done)))
            else:
                result = getattr(server, method)(*args)
        except Exception as error:
            traceback.print_exc()
            if server is None or server.unfinished:
                raise  # no engine, or one that can't go on: the exit status and the log say why
            conn.send(Reply("error", Raised(type(error).__name__, traceback.format_exc(limit=-6))))
        else:
            conn.send(Reply("ok", result))


def main(fd: int, parent: int) -> None:
    """Serve on the inherited file descriptor."""
    die_with(parent)
    np.seterr(all="raise", under="ignore")
    serve(Connection(fd), Server)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # vLLM's and torch's threads can hold an ordinary exit up
