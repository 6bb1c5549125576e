"""Every random number of a run, addressed by (seed, step, prompt, slot, stream): no state, no number used twice.

A counter-based generator (Philox) keyed by the address makes a draw independent of batch order, of the number of
ranks and of how often the run was resumed. Ranks of one tensor-parallel group compute the same number; other samples,
steps and data-parallel ranks have other addresses. Ours.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Stream: TypeAlias = Literal["accept", "residual", "engine", "random_cut", "thinning"]


def generator(seed: int, step: int, prompt_key: str, slot: int, stream: Stream) -> np.random.Generator:
    """The generator at one address. Equal addresses give equal numbers, different ones independent numbers."""
    address = f"{seed}/{step}/{prompt_key}/{slot}/{stream}".encode()
    key = np.frombuffer(hashlib.blake2b(address, digest_size=16).digest(), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def uniforms(seed: int, step: int, prompt_key: str, slot: int, stream: Stream, n: int) -> NDArray[np.float64]:
    """[n] uniforms in [0, 1): element i belongs to response position i."""
    return generator(seed, step, prompt_key, slot, stream).random(n)


def engine_seed(seed: int, step: int, prompt_key: str, slot: int) -> int:
    """A non-negative 31-bit seed for the engine's own sampler at this address."""
    return int(generator(seed, step, prompt_key, slot, "engine").integers(0, 2**31 - 1))
