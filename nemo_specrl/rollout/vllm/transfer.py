"""Weights on their way into the engine: chunks in a private folder, a checksum for each.

The sender writes `00000.safetensors`, `00000.json` (in that order, renamed into place), waits until every engine rank
has left `00000.done.<rank>` before the one after the next, and ends with `end`. So at most two chunks exist at a time,
whatever the model's size, and the engine's ranks need no channel of their own. Ours.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_specrl.files import staged

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 256 * 2**20
_POLL_S = 0.002


def checksum(tensors: dict[str, torch.Tensor]) -> int:
    """CRC-32 over the names, dtypes, shapes and bytes of a group of tensors, in order of name."""
    import torch

    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        crc = zlib.crc32(f"{name}/{tensor.dtype}/{tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


class CutShortError(RuntimeError):
    """The receiver ended before it had everything."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can read, in memory where there is /dev/shm; removed afterwards."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="nemo-specrl-refit-", dir=shm if shm.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _chunks(weights: Iterable[tuple[str, torch.Tensor]], limit: int) -> Iterator[dict[str, torch.Tensor]]:
    group: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in weights:
        # A copy where tensors share storage (tied weights) or are views: safetensors refuses both.
        group[name] = tensor.detach().cpu().contiguous()
        if group[name].untyped_storage().nbytes() != group[name].nbytes:
            group[name] = group[name].clone()
        size += tensor.nbytes
        if size >= limit:
            yield group
            group, size = {}, 0
    if group:
        yield group


def send(
    weights: Iterable[tuple[str, torch.Tensor]],
    folder: Path,
    *,
    ranks: int,
    answered: Callable[[], bool],
    chunk_bytes: int = CHUNK_BYTES,
) -> set[str]:
    """Write all chunks and wait until they were taken. `answered` says whether the engine has ended its part.

    Returns the names that were sent. CutShortError when the engine ended before it had all of them."""
    from safetensors.torch import save_file

    sent: set[str] = set()
    written = 0
    for group in _chunks(weights, chunk_bytes):
        if written >= 2:
            _await(folder, written - 2, ranks, answered)
        with staged(folder / f"{written:05d}.safetensors", durable=False) as scratch:
            save_file(_unshared(group), scratch)
        with staged(folder / f"{written:05d}.json", durable=False) as scratch:
            scratch.write_text(json.dumps({"crc": checksum(group)}))
        sent |= group.keys()
        written += 1
    (folder / "end").touch()
    for index in range(max(written - 2, 0), written):
        _await(folder, index, ranks, answered)
    return sent


def _unshared(group: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    seen: set[int] = set()
    out = {}
    for name, tensor in group.items():
        out[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return out


def _await(folder: Path, index: int, ranks: int, answered: Callable[[], bool]) -> None:
    marks = [folder / f"{index:05d}.done.{rank}" for rank in range(ranks)]
    while True:
        over = answered()  # asked before the marks are looked at: they are all there before an answer is
        if all(mark.exists() for mark in marks):
            break
        if over:
            raise CutShortError(f"chunk {index} was not taken")
        time.sleep(_POLL_S)
    for path in folder.glob(f"{index:05d}.*"):
        path.unlink()


def receive(folder: Path, rank: int, mismatches: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors, as they arrive. A chunk whose checksum differs from the sender's is named in `mismatches` and still
    handed on: loading must run to its end, or the model is left half loaded."""
    from safetensors.torch import load_file

    index = 0
    while True:
        stamp = folder / f"{index:05d}.json"
        while not stamp.exists():
            if not folder.exists():
                raise RuntimeError("the sender of the weights has gone away")
            if (folder / "end").exists() and not stamp.exists():
                return
            time.sleep(_POLL_S)
        tensors = load_file(folder / f"{index:05d}.safetensors")
        want, got = json.loads(stamp.read_text())["crc"], checksum(tensors)
        if want != got:
            mismatches.append(f"chunk {index} ({min(tensors)} ...): checksum {got:08x}, sent {want:08x}")
        yield from tensors.items()
        (folder / f"{index:05d}.done.{rank}").touch()
        index += 1
