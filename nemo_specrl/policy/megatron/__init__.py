"""Policies on Megatron-core: `MegatronPolicy`, imported lazily because Megatron takes seconds to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_specrl.policy.megatron.policy import MegatronPolicy

__all__ = ["MegatronPolicy"]


def __getattr__(name: str) -> Any:
    if name == "MegatronPolicy":
        from nemo_specrl.policy.megatron.policy import MegatronPolicy

        return MegatronPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
