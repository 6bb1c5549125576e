"""VllmEngine: the Engine protocol on vLLM, in a process of its own. This module imports no vllm."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_specrl.config.engine import EngineConfig, SamplingConfig
from nemo_specrl.contracts.drafter import Drafter
from nemo_specrl.contracts.engine import Completion, GenerationRequest, LogprobError, SpecCounters, StaleEngineError
from nemo_specrl.models.folder import shapes
from nemo_specrl.models.head_layout import PREFIX
from nemo_specrl.rollout.vllm import arguments, draft_folder, environment, limits, transfer, versions
from nemo_specrl.rollout.vllm.channel import Child, ChildError
from nemo_specrl.rollout.vllm.draft_folder import Served
from nemo_specrl.types import FloatArray, IntArray, Rollout

if TYPE_CHECKING:
    import torch

NOT_THE_POLICYS = -1
"""The version of an engine that was started with another head than the policy's: it needs a refit first."""
_SCORE_CHUNK_TOKENS = 2**18
"""Rows are scored in batches of about so many tokens, which bounds what is pickled at once."""


class VllmEngine:
    """Samples from, and scores under, the weights that it holds: the folder's own (version 0) until a refit.

    Create and use it in a thread that lives as long as the engine shall: the kernel ends the engine's process with the
    thread that started it."""

    def __init__(
        self,
        model_folder: Path,
        engine: EngineConfig,
        sampling: SamplingConfig,
        drafter: Drafter,
        *,
        max_length: int,
        seed: int,
        eos_token_ids: Sequence[int],
        log: Path,
        head: Path | None = None,
    ) -> None:
        """Start the engine and wait until it serves.

        `max_length`: longest prompt + response, tokens. `eos_token_ids`: tokens that end a response. `log`: the file
        that the process's output is appended to. `head`: for a drafter that has one, the folder whose safetensors hold
        the draft head (model.mtp_layers.0.*); what vLLM reads is laid out beside the log. ValueError for settings that
        can't work, RuntimeError with the log's last lines when it does not start."""
        vllm = versions.installed()
        vllm.check_method(drafter.name, has_head=drafter.has_head)
        if drafter.has_head != (head is not None):
            raise ValueError(
                f"drafter={drafter.name} with head={head}: it {'needs one' if head is None else 'has none'}"
            )
        limits.check(engine, sampling, drafter, cpu=vllm.cpu)
        self._config = _read_config(model_folder)
        self._vocab_size = int(self._config["vocab_size"])
        limits.check_model(drafter, self._config, max_length=max_length, cpu=vllm.cpu)
        if bad := [t for t in eos_token_ids if not 0 <= t < self._vocab_size]:
            raise ValueError(f"end-of-sequence ids {bad} are outside the vocabulary of {self._vocab_size}")
        self._max_length = max_length
        self._ranks = engine.tensor_parallel
        self._served = Served(model_folder, {})
        self._expected = _checkpoint_names(model_folder, self._config)
        if head is not None:
            self._served = draft_folder.build(model_folder, head, log.parent / "served_model")
            self._expected |= shapes(head).keys()
        # A head inside the model's own folder is served until the first refit, and need not be the one that learns.
        own_head = head is not None and any(n.startswith(PREFIX) for n in shapes(model_folder))
        self._version: int | None = NOT_THE_POLICYS if own_head else 0
        env = environment.engine_environment(
            os.environ,
            engine,
            cpu=vllm.cpu,
            offline=model_folder.is_dir(),
            prefix=Path(sys.prefix),
            cores=len(os.sched_getaffinity(0)),
            head=head is not None,
        )
        command = [sys.executable, "-m", "nemo_specrl.rollout.vllm.server"]
        self._child = Child(command, env, log, "the vLLM engine")
        llm = arguments.llm_arguments(
            self._served.model,
            engine,
            drafter,
            max_length=max_length,
            seed=seed,
            cpu=vllm.cpu,
            served=self._served.speculative,
            count_requests=vllm.counts_requests,
        )
        law = arguments.sampling_arguments(sampling, tuple(eos_token_ids))
        try:
            self._child.call("start", llm, law, drafter.config, timeout_s=engine.start_timeout_s)
        except BaseException:
            self._child.close()
            raise

    @property
    def version(self) -> int:
        """The policy version whose weights are loaded; StaleEngineError when a refit went wrong."""
        if self._version is None:
            raise StaleEngineError("the last weight update failed, so the engine's weights are unknown: refit again")
        return self._version

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._child.process.pid

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        topk: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Completions in the order of the requests. ValueError for a request that can't fit, LogprobError
        for log-probabilities that can't be true."""
        _ = self.version
        if not 0 <= topk <= min(arguments.MAX_TOPK, self._vocab_size):
            raise ValueError(f"topk={topk}: must be between 0 and {min(arguments.MAX_TOPK, self._vocab_size)}")
        jobs = []
        for index, request in enumerate(requests):
            context = np.concatenate([request.prompt_ids, request.prefix_ids]).astype(np.int32)
            self._check_ids(f"request {index}", context)
            if request.max_tokens < 1:
                raise ValueError(f"request {index}: max_tokens={request.max_tokens}; a finished row needs no request")
            self._check_length(f"request {index}", len(context), request.max_tokens)
            jobs.append((context.tolist(), request.max_tokens, request.seed))
        if not jobs:
            return []
        try:
            completions: list[Completion] = self._child.call("generate", jobs, topk, on_progress=on_progress)
        except ChildError as error:
            if error.kind == LogprobError.__name__:
                raise LogprobError(str(error)) from error
            raise
        return completions

    def score(self, rows: Sequence[tuple[IntArray, IntArray]]) -> list[FloatArray]:
        """For each (prompt_ids [P], response_ids [T]): [T] raw (temperature 1, untruncated) log-probabilities."""
        _ = self.version
        scores: list[FloatArray] = []
        chunk: list[tuple[list[int], int]] = []
        tokens = 0
        for index, (prompt, response) in enumerate(rows):
            ids = np.concatenate([prompt, response]).astype(np.int32)
            if len(prompt) == 0:
                raise ValueError(f"row {index}: an empty prompt; the first token of a sequence has no law")
            self._check_ids(f"row {index}", ids)
            self._check_length(f"row {index}", len(ids), 0)
            chunk.append((ids.tolist(), len(response)))
            tokens += len(ids)
            if tokens >= _SCORE_CHUNK_TOKENS or index == len(rows) - 1:
                scores += self._child.call("score", chunk)
                chunk, tokens = [], 0
        return scores

    def refit(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        version: int,
        extras: Mapping[str, IntArray] = MappingProxyType({}),
    ) -> None:
        """Load `weights` (Hugging Face names; the policy's and, where the drafter has one, its head's, in any order),
        reset the prefix cache and stamp `version`. `extras`: see `Drafter.refit_extras`.

        StaleEngineError when a weight of the checkpoint or of the head is missing, a chunk arrived with another
        checksum, or live parameters are not what was sent; until the next refit that succeeds nothing is generated."""
        self._version = None
        with transfer.private_folder() as folder:
            self._child.post("refit", str(folder), dict(extras))
            try:
                sent = transfer.send(
                    self._served.complete(weights), folder, ranks=self._ranks, answered=self._child.answered
                )
            except transfer.CutShortError as error:
                self._child.wait()  # raises what the engine met
                raise ChildError(f"the vLLM engine ended a refit too early: {error}") from error
            except ChildError:
                raise
            except BaseException:
                # The caller's iterator failed: let the engine finish, so that it stays answerable.
                (folder / "end").touch()
                self._child.wait()
                raise
            reports: list[dict[str, Any]] = self._child.wait()
        problems = [problem for report in reports for problem in report["problems"]]
        for report in reports:
            if lost := sent.symmetric_difference(report["names"]):
                problems.append(f"{len(lost)} tensors were sent but did not arrive, e.g. {min(lost)}")
        if missing := self._expected - sent:
            problems.append(f"{len(missing)} weights of the checkpoint were not sent, e.g. {min(missing)}")
        if problems:
            raise StaleEngineError(f"the engine does not hold policy version {version}: " + "; ".join(problems[:5]))
        self._version = version

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Finished rollouts of this step, for drafters that learn from history."""
        self._child.call("observe", list(rollouts))

    def counters(self) -> SpecCounters:
        """Speculation counters since start."""
        found: SpecCounters = self._child.call("counters")
        return found

    def close(self) -> None:
        """End the engine's process; may be called twice."""
        self._child.close()

    def __enter__(self) -> VllmEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_ids(self, what: str, ids: IntArray) -> None:
        if len(ids) == 0:
            raise ValueError(f"{what}: an empty prompt")
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            raise ValueError(f"{what}: token ids must lie in [0, {self._vocab_size}), found {ids.min()} to {ids.max()}")

    def _check_length(self, what: str, context: int, new: int) -> None:
        if context + new > self._max_length:
            raise ValueError(
                f"{what}: {context} tokens + {new} new ones exceed model.max_length={self._max_length}: raise it, or "
                "lower sampling.max_new_tokens or data.max_prompt_tokens"
            )


def _read_config(model_folder: Path) -> dict[str, Any]:
    path = model_folder / "config.json"
    if not path.exists():
        raise ValueError(f"{path} does not exist: the engine needs a folder with a Hugging Face checkpoint")
    config: dict[str, Any] = json.loads(path.read_text())
    return config


def _checkpoint_names(model_folder: Path, config: dict[str, Any]) -> set[str]:
    """Names of the checkpoint's tensors: what a complete update must bring (nothing is known of other formats). A
    native head's are not among them: the policy has none of its own."""
    names = {name for name in shapes(model_folder) if not name.startswith(PREFIX)}
    return names - {"lm_head.weight"} if config.get("tie_word_embeddings") else names
