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
_PROOF_COLUMNS = 8


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
        repack_tied_head(self.get_model())
        problems += proof.differences()
        return {"names": sorted(proof.names), "problems": problems, "proved": len(proof.samples)}

    def specrl_configure(self, drafter: DrafterConfig) -> None:
        """Tell this process's proposers what they are configured to do."""
        drafters.configure(drafter)

    def specrl_observe(self, rollouts: Sequence[Rollout]) -> None:
        """Hand finished rollouts to the proposers of this process."""
        drafters.observe(rollouts)


def repack_tied_head(model: Any) -> None:
    """Pack a tied LM head anew, from the embedding that was just loaded.

    vLLM (0.32, CPU) packs every linear weight once it is loaded, and reload_weights() packs again only what it loaded.
    A tied head receives no tensor of its own, so it would keep the packed copy of the old embedding: log-probs drift
    off, a little more with every update. On a GPU nothing is packed, and this does nothing."""
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is None or embedding is None or not getattr(model.config, "tie_word_embeddings", False):
        return
    if hasattr(head, "quant_method"):  # absent on pipeline stages without a head
        head.tie_weights(embedding)
        head.quant_method.process_weights_after_loading(head)


class _Proof:
    """Keeps the first rows of each tensor that the model holds unpacked under its own name (norms, biases, the
    embedding), to compare them with the live parameters once loading is done. Linear weights are fused and pre-packed
    for the hardware, so they can't be compared; they went through the same loader. The LM head, which may be tied and
    packed a second time, is compared by multiplying with it."""

    def __init__(self, model: Any) -> None:
        self.live: dict[str, torch.Tensor] = dict(model.named_parameters())
        self.model = model
        self.names: set[str] = set()
        self.samples: dict[str, torch.Tensor] = {}
        self.head: torch.Tensor | None = None
        self.tied = bool(getattr(model.config, "tie_word_embeddings", False))

    def watch(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self.names.add(name)
            if name == "lm_head.weight" or (self.tied and name == "model.embed_tokens.weight"):
                self.head = tensor[:_PROOF_ROWS].clone()
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

    def _head_difference(self) -> list[str]:
        """Multiply unit vectors by the live LM head, however it is packed: its own columns must come out."""
        import torch

        head: Any = getattr(self.model, "lm_head", None)
        if self.head is None or not hasattr(head, "quant_method") or head.weight.shape[0] < len(self.head):
            return []
        width = self.head.shape[1]
        probe = torch.eye(min(_PROOF_COLUMNS, width), width, dtype=head.weight.dtype, device=head.weight.device)
        got = head.quant_method.apply(head, probe)[:, : len(self.head)].cpu()
        want = self.head.to(head.weight.dtype).cpu().T[: len(probe)]
        return [] if torch.equal(got, want) else ["lm_head: the live head does not multiply by what was sent"]

    def differences(self) -> list[str]:
        import torch

        if not self.samples:
            return ["not one of the tensors sent has the name and shape of a live parameter"]
        live = dict(self.model.named_parameters())
        return self._head_difference() + [
            f"{name}: the live parameter is not what was sent"
            for name, sent in self.samples.items()
            if not torch.equal(live[name].detach()[: len(sent)].cpu(), sent.to(live[name].dtype).cpu())
        ]
