"""Methods that vLLM mixes into each of its workers (`worker_extension_cls`): weight updates and observation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.rollout.vllm import drafters, transfer
from nemo_specrl.types import Rollout

if TYPE_CHECKING:
    import torch

_PROOF_ROWS = 64


class RefitExtension:
    """Runs inside vLLM's worker, once per tensor-parallel rank."""

    if TYPE_CHECKING:  # what the worker that it is mixed into offers
        rank: int

        def get_model(self) -> Any: ...
        def reload_weights(self, **kwargs: Any) -> None: ...

    def specrl_refit(self, folder: str) -> dict[str, Any]:
        """Load the weights that arrive in `folder`. Returns what arrived and what is wrong with it:
        `names`, `problems` (empty = sound), `proved` (number of live parameters compared bit by bit)."""
        problems: list[str] = []
        proof = _Proof(self.get_model())
        self.reload_weights(weights_iterator=proof.watch(transfer.receive(Path(folder), self.rank, problems)))
        problems += proof.differences()
        return {"names": sorted(proof.names), "problems": problems, "proved": len(proof.samples)}

    def specrl_configure(self, drafter: DrafterConfig) -> None:
        """Tell this process's proposers what they are configured to do."""
        drafters.configure(drafter)

    def specrl_observe(self, rollouts: Sequence[Rollout]) -> None:
        """Hand finished rollouts to the proposers of this process."""
        drafters.observe(rollouts)


class _Proof:
    """Keeps the first rows of each tensor that the model holds unpacked under its own name (norms, biases, the
    embedding), to compare them with the live parameters once loading is done. Linear weights are fused and pre-packed
    for the hardware, so they can't be compared; they went through the same loader."""

    def __init__(self, model: Any) -> None:
        self.live: dict[str, torch.Tensor] = dict(model.named_parameters())
        self.model = model
        self.names: set[str] = set()
        self.samples: dict[str, torch.Tensor] = {}

    def watch(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self.names.add(name)
            if name in self.live and self._comparable(name, self.live[name], tensor):
                self.samples[name] = tensor[:_PROOF_ROWS].clone()
            yield name, tensor

    @staticmethod
    def _comparable(name: str, live: torch.Tensor, sent: torch.Tensor) -> bool:
        unpacked = live.dim() == 1 or "embed" in name
        # Vocabulary rows may be padded at the end, never elsewhere; a sharded embedding is shorter than what was sent.
        return (
            unpacked
            and live.dim() == sent.dim()
            and live.shape[1:] == sent.shape[1:]
            and live.shape[0] >= sent.shape[0]
        )

    def differences(self) -> list[str]:
        import torch

        if not self.samples:
            return ["not one of the tensors sent has the name and shape of a live parameter"]
        live = dict(self.model.named_parameters())
        return [
            f"{name}: the live parameter is not what was sent"
            for name, sent in self.samples.items()
            if not torch.equal(live[name].detach()[: len(sent)].cpu(), sent.to(live[name].dtype).cpu())
        ]
