"""Files and folders that are complete or not there: written to one side, forced to the disk, moved into place. Ours.

A rename within a folder is atomic (POSIX); it survives a crash of the machine only when the contents were on the disk
before it and the folder after it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace `path`'s contents (text as UTF-8) as a whole. OSError, with the old file unchanged, when that fails."""
    with staged(path) as scratch:
        scratch.write_bytes(data.encode() if isinstance(data, str) else data)


@contextmanager
def staged(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yields a path beside `path` to write a file to, and moves it to `path` when the block ends; on an error it is
    removed. `durable` = False for what another process reads now and nobody after a crash."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        if durable:
            sync(scratch)
            put_in_place(scratch, path)
        else:
            os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def put_in_place(staging: Path, final: Path) -> None:
    """Move a finished file or folder into place, durably. A file that is there is replaced, a folder must be empty."""
    os.replace(staging, final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Force a file's contents, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync this has nothing to wait for
            raise
    finally:
        os.close(descriptor)
