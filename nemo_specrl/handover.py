"""What a trainer that stops early leaves to the batch shell, which goes on with the run later."""

from __future__ import annotations

REQUEUE_EXIT_CODE = 85
"""The trainer stopped early with a checkpoint: the batch shell requeues the job (conf/cluster, `requeue`)."""

REQUEUE_FILE = "requeue"
"""The same, as a file in the attempt's folder that holds the reason: under torchrun the exit code is lost."""

ATTEMPT_DIR = "NEMO_SPECRL_ATTEMPT_DIR"
"""The environment variable that names the attempt's folder; unset without a batch shell."""
