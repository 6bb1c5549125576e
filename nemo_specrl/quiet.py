"""Libraries' chatter at start-up: what they tell of themselves comes after, not before, what we tell of the run.

Standard library only, and called before a library is imported. What stays: every error, and every warning that is not
named here. `nemo-specrl doctor` says which fused kernels (Apex, Transformer Engine) there are.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod

_WARNINGS_ONLY = ("mlflow", "alembic", "megatron")
"""Loggers that set levels of their own."""
_ERRORS_ONLY = ("nv_one_logger",)
"""NVIDIA's telemetry, which NeMo imports: it warns that nothing was asked of it."""
_NOTED = (
    r"(Transformer Engine and )?Apex (is|are) not installed\. Falling back",
    r"full scope is deprecated\. Use empty cuda_graph_scope",  # Megatron's own default
)
"""Megatron's warnings, once per module that it imports."""


def quiet_libraries() -> None:
    """Keep what is a warning, and what is ours. To be called again where a library (Hydra) has set up logging."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("nemo_specrl").setLevel(logging.INFO)
    for name in _WARNINGS_ONLY:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _ERRORS_ONLY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in _NOTED:
        warnings.filterwarnings("ignore", message)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Without transformers' bars and any other of tqdm's inside: the caller has said what is going on."""
    from tqdm.std import tqdm
    from transformers.utils import logging as transformers_logging

    shown, original = transformers_logging.is_progress_bar_enabled(), tqdm.__init__
    transformers_logging.disable_progress_bar()
    # transformers reads a GGUF under a bar of tqdm's own, which no setting reaches once tqdm is imported.
    tqdm.__init__ = partialmethod(original, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = original
        if shown:
            transformers_logging.enable_progress_bar()
