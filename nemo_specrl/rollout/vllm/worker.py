"""Methods that vLLM mixes into each of its workers (`worker_extension_cls`): weight updates and observation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.models.head_layout import PREFIX
from nemo_specrl.rollout.vllm import drafters, transfer
from nemo_specrl.rollout.vllm.shortlist import install, watch_rows
from nemo_specrl.types import IntArray, Rollout

if TYPE_CHECKING:
    import torch


class RefitExtension:
    """Runs inside vLLM's worker, once per tensor-parallel rank."""

    if TYPE_CHECKING:  # what the worker that it is mixed into offers
        rank: int
        vllm_config: Any

        def get_model(self) -> Any: ...
        def reload_weights(self, **kwargs: Any) -> None: ...

    def specrl_refit(self, folder: str, extras: dict[str, IntArray]) -> dict[str, Any]:
        """Load the weights that arrive in `folder`, the policy's and its draft head's. `extras`: what the drafter sends
        along (`Drafter.refit_extras`); `shortlist`: the tokens that the head shall choose among.

        Returns what arrived and what is wrong with it: `names`, `problems` (empty = sound),
        `proved` (number of tensors of `trunk` and `head` that were compared with live parameters bit by bit)."""
        from nemo_specrl.rollout.vllm.proof import TrunkProof

        problems: list[str] = []
        proof = TrunkProof(self.get_model())
        head: dict[str, torch.Tensor] = {}
        arriving = transfer.receive(Path(folder), self.rank, problems)
        config = self.get_model().config
        rows: list[torch.Tensor] = []
        shortlist = extras.get("shortlist")
        if shortlist is not None:
            arriving = watch_rows(arriving, shortlist, bool(getattr(config, "tie_word_embeddings", False)), rows)
        self.reload_weights(weights_iterator=proof.watch(without_head(arriving, head)))
        repack_tied_head(self.get_model())
        problems += proof.differences()
        proved = {"trunk": len(proof.samples), "head": 0}
        if head:
            proved["head"], wrong = self._reload_head(head)
            problems += wrong
        if shortlist is not None and rows:
            install(draft_model(self), shortlist, rows[0], config.vocab_size)
        return {"names": sorted(proof.names | head.keys()), "problems": problems, "proved": proved}

    def _reload_head(self, head: dict[str, torch.Tensor]) -> tuple[int, list[str]]:
        """Load a whole head into the live drafter, whose embedding and LM head are the trunk's own modules: they get no
        weights here and stay as they are."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        from nemo_specrl.rollout.vllm.proof import head_differences

        draft = draft_model(self)
        if draft is None:
            return 0, ["a draft head was sent to an engine that has no drafter with weights"]
        with set_current_vllm_config(self.vllm_config):  # as vLLM's own reload_weights does for the trunk
            initialize_layerwise_reload(draft)
            draft.load_weights(iter(head.items()))
            finalize_layerwise_reload(draft, self.vllm_config.model_config)
        return head_differences(draft, head)

    def specrl_seed(self, seed: int) -> None:
        """Seed the generator that sampled drafts are drawn from: vLLM's old model runner takes its process's own (the
        new one the requests'). So a batch's drafts depend on the batch, not on what was sampled before a resume."""
        import torch

        torch.manual_seed(seed)

    def specrl_configure(self, drafter: DrafterConfig) -> None:
        """Tell this process's proposers what they are configured to do."""
        drafters.configure(drafter)

    def specrl_observe(self, rollouts: Sequence[Rollout]) -> None:
        """Hand finished rollouts to the proposers of this process."""
        drafters.observe(rollouts)


def draft_model(worker: Any) -> Any:
    """The live drafter's network, None where the engine drafts without one. vLLM 0.25 has no name for it: there it is
    the old model runner's `drafter` or the new one's `speculator` that holds it."""
    if hasattr(worker, "get_draft_model"):
        return worker.get_draft_model()
    runner = worker.model_runner
    drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    model = getattr(drafter, "model", None)
    unwrap = getattr(model, "unwrap", None)  # from its CUDA graphs
    return model if unwrap is None else unwrap()


def without_head(
    weights: Iterable[tuple[str, torch.Tensor]], head: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The trunk's tensors as they arrive; the head's are put into `head`, to be loaded at once when all are there.

    A head is one layer, so keeping it costs little, and how the stream was cut into chunks can't matter (elsewhere a
    layer split over two chunks was loaded half)."""
    for name, tensor in weights:
        if name.startswith(PREFIX):
            head[name] = tensor
        else:
            yield name, tensor


def repack_tied_head(model: Any) -> None:
    """Pack a tied LM head anew, from the embedding that was just loaded.

    vLLM (0.32, CPU) packs every linear weight once it is loaded, and reload_weights() packs again only what it loaded.
    A tied head receives no tensor of its own, so it would keep the packed copy of the old embedding: log-probs drift
    off, a little more with every update. On a GPU nothing is packed, and this does nothing; nor where the two are one
    module (0.25)."""
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    if head is None or head is embedding or not getattr(model.config, "tie_word_embeddings", False):
        return
    if hasattr(head, "quant_method") and embedding is not None:  # absent on pipeline stages without one
        head.tie_weights(embedding)
        head.quant_method.process_weights_after_loading(head)
