"""DAPO's soft punishment of long responses (arXiv 2503.14476, section 3.4, equation 13)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def soft_overlong_punishment(lengths: ArrayLike, limit: int, buffer: int) -> NDArray[np.floating[Any]]:
    """[n] response lengths, tokens -> [n] what is added to each reward: 0 up to `limit - buffer`, from there a straight
    line down to -1 at `limit`, and -1 beyond. Lengths include the end-of-sequence token.

    ValueError unless 0 < buffer <= limit."""
    if not 0 < buffer <= limit:
        raise ValueError(f"a buffer of {buffer} tokens before a limit of {limit}: it must lie between 1 and the limit")
    return np.clip((limit - buffer - np.asarray(lengths, np.float64)) / buffer, -1.0, 0.0)
