"""The policy's tiny checkpoints."""

from tests.policy.megatron.conftest import checkpoints

__all__ = ["checkpoints"]
