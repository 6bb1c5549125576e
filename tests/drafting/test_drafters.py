"""What each drafter says of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nemo_specrl.config.drafter import DrafterConfig
from nemo_specrl.drafting import DRAFTERS, make_drafter
from nemo_specrl.drafting.history import PROPOSER


@pytest.mark.parametrize(
    ("method", "max_slots", "slots", "cpu", "off"),
    [
        ("ngram", None, 9, True, True),
        ("ngram", None, 8, True, False),
        ("ngram", None, 256, False, False),
        ("ngram", 16, 32, False, True),
        ("ngram", 0, 32, True, False),
        ("history", None, 32, True, False),
        ("mtp", 4, 32, True, False),
    ],
)
def test_ngram_is_off_in_a_full_engine(
    method: str, max_slots: int | None, slots: int, cpu: bool, off: bool, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = make_drafter(DrafterConfig(method=method, max_slots=max_slots, speculative_config={"x": 1}))
    found = drafter.fits(slots, cpu=cpu)
    assert (found.drafts, found.name) == ((False, "off") if off else (True, method))
    if off:
        found.check()
    assert ("drafter.max_slots" in caplog.text) == off


def test_importing_the_drafters_needs_neither_vllm_nor_torch() -> None:
    code = (
        "import sys; from nemo_specrl.drafting import *; from nemo_specrl.config.drafter import DrafterConfig;"
        "from nemo_specrl.drafting import DRAFTERS, make_drafter;"
        "[make_drafter(DrafterConfig(method=m)) for m in [*DRAFTERS, 'eagle3']];"
        "assert not {'torch', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("method", [*DRAFTERS, "suffix"])
def test_each_gives_vllm_its_own_method_or_none(method: str) -> None:
    drafter = make_drafter(DrafterConfig(method=method, num_draft_tokens=3))
    found = drafter.speculative_config()
    assert (found is not None) == drafter.drafts == (method != "off")
    if found is not None:
        assert found["num_speculative_tokens"] == 3
        assert found["method"] == ("custom_class" if method == "history" else method)


def test_a_drafter_of_ones_own_is_named_by_its_class() -> None:
    drafter = make_drafter(DrafterConfig(method="nemo_specrl.drafting.off:Off"))
    assert not drafter.drafts
    with pytest.raises(ValueError, match=r"drafter\.method='no\.such:Thing' cannot be loaded"):
        make_drafter(DrafterConfig(method="no.such:Thing"))


@pytest.mark.parametrize(
    ("drafter", "expected"),
    [
        (
            DrafterConfig(method="ngram", num_draft_tokens=3, speculative_config={"prompt_lookup_min": 4}),
            {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4, "prompt_lookup_max": 5},
        ),
        (DrafterConfig(method="history"), {"method": "custom_class", "model": PROPOSER}),
        (
            DrafterConfig(method="eagle3", speculative_config={"model": "head", "draft_tensor_parallel_size": 1}),
            {"method": "eagle3", "model": "head", "num_speculative_tokens": 4, "draft_tensor_parallel_size": 1},
        ),
        (DrafterConfig(method="mtp"), {"method": "mtp", "draft_sample_method": "probabilistic"}),
        (
            DrafterConfig(method="mtp", speculative_config={"draft_sample_method": "greedy"}),
            {"draft_sample_method": "greedy"},
        ),
    ],
)
def test_drafters_become_speculative_configs(drafter: DrafterConfig, expected: dict[str, object]) -> None:
    config = make_drafter(drafter).speculative_config()
    assert config is not None
    assert expected.items() <= config.items()


def test_a_served_head_decides_how_it_is_driven_and_block_knows_argmax_drafts_only() -> None:
    served = {"method": "eagle", "model": "folder"}
    drafter = make_drafter(DrafterConfig(method="mtp", rejection_sample_method="block"))
    config = drafter.speculative_config(served)
    assert config == served | {"num_speculative_tokens": 4, "rejection_sample_method": "block"}
