"""nemo-specrl: RL post-training of large language models with speculative rollouts."""

__version__ = "0.1.0"
