"""Rollouts of earlier epochs, keyed by (prompt digest, slot): bounded in bytes, saved atomically, restored exactly.

A rollout costs 12 bytes a token (id, log-prob, policy version), plus 8 * K with K stored candidates (172 bytes at
K = 20), plus 4 a prompt token. Candidates stay fp32: half precision would shift q by up to half a per cent, and a
residual against a wrong q is no longer exact. Ours; the published code keeps everything, for ever, on disk.
"""

from __future__ import annotations

import json
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nemo_specrl.files import staged
from nemo_specrl.types import Rollout, TopK

FILE = "rollout_cache.npz"
FORMAT = 1
Key: TypeAlias = tuple[int, str, int]
"""(epoch, prompt key, slot)"""


class RolloutCache:
    """One rollout per (epoch, prompt, slot); the oldest are dropped first."""

    def __init__(self, max_bytes: int, *, delay: int = 1, max_age: int = 2, keep: int = 0) -> None:
        """`max_bytes`: bound of the arrays held. `delay`, `max_age`: `lookup` answers with the newest rollout whose
        age in epochs lies between them; what a newer one will always be found before is forgotten at once, but for
        rollouts of the last `keep` epochs (a history drafter's window).

        Raises ValueError when no age could ever be right."""
        if not 1 <= delay <= max_age:
            raise ValueError(f"reuse needs 1 <= delay <= max_age, not delay={delay}, max_age={max_age}")
        if max_bytes <= 0:
            raise ValueError(f"the cache needs room, not {max_bytes} bytes; raise reuse.cache_mib")
        self.max_bytes, self.delay, self.max_age, self.keep = max_bytes, delay, max_age, keep
        self._rollouts: OrderedDict[Key, Rollout] = OrderedDict()
        self._epochs: dict[tuple[str, int], list[int]] = {}
        self.bytes = 0
        """Bytes held now."""
        self.counts = {"hits": 0, "misses": 0, "dropped": 0, "expired": 0}
        """Since the run began: lookups answered and not, rollouts dropped for lack of room, and as out of date."""

    def __len__(self) -> int:
        return len(self._rollouts)

    def __iter__(self) -> Iterator[tuple[int, Rollout]]:
        """(epoch, rollout), oldest first."""
        return ((epoch, rollout) for (epoch, _, _), rollout in self._rollouts.items())

    def put(self, rollout: Rollout, epoch: int | None = None) -> None:
        """Remember a rollout of `epoch`, in place of an equal (epoch, prompt, slot), and drop what is too old or too
        much. One that alone is larger than the cache is dropped itself. Epochs never go back.

        A trainer that has no epochs gives None: every rollout of a prompt's slot is then one epoch younger than the
        one before, and prompts do not age one another."""
        everywhere = epoch is not None
        if epoch is None:
            epoch = self._next(rollout.prompt_key, rollout.slot)
        else:
            assert not self._rollouts or epoch >= next(reversed(self._rollouts))[0], "epochs never go back"
        size = nbytes(rollout)
        if size > self.max_bytes:
            self.counts["dropped"] += 1
            return
        key = (epoch, rollout.prompt_key, rollout.slot)
        if key in self._rollouts:
            self._remove(key)
        self._rollouts[key] = rollout.with_(policy_logprobs=None)
        self._epochs.setdefault(key[1:], []).append(epoch)
        self.bytes += size
        self._forget_superseded(key)
        if everywhere:
            self._shrink("expired", lambda oldest: oldest[0] < epoch - max(self.keep, self.max_age))
        self._shrink("dropped", lambda _: self.bytes > self.max_bytes)

    def lookup(self, prompt_key: str, slot: int, epoch: int | None = None) -> Rollout | None:
        """The newest rollout that is `delay` to `max_age` epochs older than `epoch` (None: as in `put`), or None."""
        if epoch is None:
            epoch = self._next(prompt_key, slot)
        ages = [epoch - e for e in self._epochs.get((prompt_key, slot), ()) if self.delay <= epoch - e <= self.max_age]
        self.counts["hits" if ages else "misses"] += 1
        return self._rollouts[(epoch - min(ages), prompt_key, slot)] if ages else None

    def _next(self, prompt_key: str, slot: int) -> int:
        return 1 + max(self._epochs.get((prompt_key, slot), (0,)))

    def metrics(self) -> dict[str, float]:
        """`cache/*`: what is held now, and the counts. Where much is dropped an epoch does not fit into
        `reuse.cache_mib`, and what is dropped is what the next epoch would have asked for first."""
        held = {"cache/rollouts": float(len(self)), "cache/mib": self.bytes / 2**20}
        return held | {f"cache/{what}": float(count) for what, count in self.counts.items()}

    def save(self, folder: Path, name: str = FILE) -> None:
        """Write everything to `folder / name`, which is replaced only once the new file is complete and on disk.
        OSError, with a remedy and the old file intact, when it cannot be written."""
        target = folder / name
        try:
            with staged(target) as scratch, zipfile.ZipFile(scratch, "w", zipfile.ZIP_STORED) as archive:
                self._write(archive)
        except OSError as error:
            raise OSError(
                error.errno,
                f"the rollout cache ({self.bytes / 2**20:.0f} MiB) could not be written to {target}: {error.strerror}. "
                "Free space there or lower reuse.cache_mib; an earlier file, if any, is unchanged",
            ) from error

    def load(self, folder: Path, name: str = FILE) -> None:
        """Replace the contents by what `save` wrote. ValueError, with a remedy and the contents unchanged, for a file
        that is missing, damaged or of another format."""
        path = folder / name
        remedy = "resume from an older checkpoint, or delete the file and save an empty cache to begin without reuse"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                header = json.loads(str(arrays["header"]))
                if header["format"] != FORMAT:
                    raise ValueError(f"its format is {header['format']}, this version reads {FORMAT}")
                restored = list(_rollouts({field: arrays[field] for field in arrays.files}))
        except (OSError, zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise ValueError(f"the rollout cache {path} cannot be read ({error}); {remedy}") from error
        self.__init__(self.max_bytes, delay=self.delay, max_age=self.max_age, keep=self.keep)  # type: ignore[misc]
        for epoch, rollout in restored:
            self.put(rollout, epoch)
        for what in self.counts:
            self.counts[what] += int(header["counts"][what])

    def _forget_superseded(self, newest: Key) -> None:
        """Forget older rollouts of the same prompt and slot that no lookup from this epoch on will answer with."""
        epoch, prompt_key, slot = newest
        epochs = self._epochs[(prompt_key, slot)]
        found = max((e for e in epochs if e <= epoch - self.delay), default=min(epochs))
        for old in [e for e in epochs if e < min(found, epoch - self.keep)]:
            self._remove((old, prompt_key, slot))
            self.counts["expired"] += 1

    def _shrink(self, why: str, while_true: Callable[[Key], bool]) -> None:
        while self._rollouts and while_true(oldest := next(iter(self._rollouts))):
            self._remove(oldest)
            self.counts[why] += 1

    def _remove(self, key: Key) -> None:
        self.bytes -= nbytes(self._rollouts.pop(key))
        epochs = self._epochs[key[1:]]
        epochs.remove(key[0])
        if not epochs:
            del self._epochs[key[1:]]

    def _write(self, archive: zipfile.ZipFile) -> None:
        """One flat array per field, one field at a time, so that saving never holds the cache twice."""
        rows = list(self._rollouts.items())

        def write(name: str, array: NDArray[Any]) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)  # type: ignore[no-untyped-call]

        def flat(name: str, dtype: type, get: Callable[[Rollout], Any]) -> None:
            parts: list[NDArray[Any]] = [np.asarray(get(r), dtype=dtype).ravel() for _, r in rows]
            write(name, np.concatenate(parts) if parts else np.zeros(0, dtype))

        write("header", np.asarray(json.dumps({"format": FORMAT, "counts": self.counts})))
        write("epoch", np.asarray([key[0] for key, _ in rows], dtype=np.int64))
        write("prompt_key", np.asarray([r.prompt_key for _, r in rows], dtype="U"))
        write("finish_reason", np.asarray([r.finish_reason for _, r in rows], dtype="U6"))
        flat("slot", np.int64, lambda r: [r.slot])
        flat("reused", np.int64, lambda r: [r.reused])
        flat("prompt_length", np.int64, lambda r: [len(r.prompt_ids)])
        flat("length", np.int64, lambda r: [r.length])
        flat("k", np.int64, lambda r: [0 if r.topk is None else r.topk.ids.shape[1]])
        flat("prompt_ids", np.int32, lambda r: r.prompt_ids)
        flat("token_ids", np.int32, lambda r: r.token_ids)
        flat("logprobs", np.float32, lambda r: r.logprobs)
        flat("policy_version", np.int32, lambda r: r.policy_version)
        flat("topk_ids", np.int32, lambda r: [] if r.topk is None else r.topk.ids)
        flat("topk_logprobs", np.float32, lambda r: [] if r.topk is None else r.topk.logprobs)


def nbytes(rollout: Rollout) -> int:
    """Bytes of a rollout's arrays as the cache holds them."""
    topk = 0 if rollout.topk is None else rollout.topk.ids.nbytes + rollout.topk.logprobs.nbytes
    arrays = (rollout.prompt_ids, rollout.token_ids, rollout.logprobs, rollout.policy_version)
    return topk + sum(array.nbytes for array in arrays)


def _rollouts(a: dict[str, NDArray[Any]]) -> Iterator[tuple[int, Rollout]]:
    prompts = np.cumsum(a["prompt_length"])[:-1]
    tokens = np.cumsum(a["length"])[:-1]
    candidates = np.cumsum(a["length"] * a["k"])[:-1]
    if len(a["token_ids"]) != a["length"].sum() or len(a["topk_ids"]) != (a["length"] * a["k"]).sum():
        raise ValueError("its arrays do not fit each other")
    if not len(a["epoch"]):
        return
    columns = zip(
        np.split(a["prompt_ids"], prompts),
        np.split(a["token_ids"], tokens),
        np.split(a["logprobs"], tokens),
        np.split(a["policy_version"], tokens),
        np.split(a["topk_ids"], candidates),
        np.split(a["topk_logprobs"], candidates),
        strict=True,
    )
    for i, (prompt_ids, token_ids, logprobs, version, ids, values) in enumerate(columns):
        k = int(a["k"][i])
        # Copies: a view would keep the whole file's array alive after its neighbours were dropped.
        yield (
            int(a["epoch"][i]),
            Rollout(
                prompt_key=str(a["prompt_key"][i]),
                slot=int(a["slot"][i]),
                prompt_ids=prompt_ids.copy(),
                token_ids=token_ids.copy(),
                logprobs=logprobs.copy(),
                policy_version=version.copy(),
                finish_reason="stop" if a["finish_reason"][i] == "stop" else "length",
                reused=int(a["reused"][i]),
                topk=TopK(ids.reshape(-1, k).copy(), values.reshape(-1, k).copy()) if k else None,
            ),
        )
