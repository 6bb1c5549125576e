"""Algorithms: advantages, losses and training rows; pure functions of numbers. config/algorithm.py lists them."""

from __future__ import annotations

from nemo_specrl.config.algorithm import ALGORITHMS, AlgorithmConfig
from nemo_specrl.config.registry import resolve
from nemo_specrl.contracts.algorithm import Algorithm


def make_algorithm(config: AlgorithmConfig, correction: str = "none") -> Algorithm:
    """The configured algorithm; `correction`: reuse.correction. ValueError for an unknown name."""
    targets = {name: facts.target for name, facts in ALGORITHMS.items()}
    algorithm: Algorithm = resolve(targets, config.name, "algorithm.name")(config, correction)
    return algorithm
