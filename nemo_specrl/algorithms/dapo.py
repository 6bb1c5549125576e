"""DAPO (arXiv 2503.14476): GRPO with a higher upper clip, the token-level loss and dynamic sampling, which
conf/algorithm/dapo.yaml sets; the objective is the same."""

from __future__ import annotations

from nemo_specrl.algorithms.grpo import Grpo


class Dapo(Grpo):
    """See `Algorithm`."""
