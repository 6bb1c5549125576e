"""`dtype: auto` is settled before anything is validated or built."""

from pathlib import Path

import pytest

from nemo_specrl.config import hardware
from nemo_specrl.config.compose import compose


@pytest.mark.parametrize(
    ("flags", "gpu", "expected"),
    [("fma avx2", False, False), ("avx512_bf16", False, True), ("amx_bf16 avx2", False, True), ("avx2", True, True)],
)
def test_bf16_needs_hardware(tmp_path: Path, flags: str, gpu: bool, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    if gpu:
        (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    assert hardware.multiplies_bf16(tmp_path) is expected


@pytest.mark.parametrize(("fast", "dtype"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_resolved_and_a_choice_is_kept(monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: str) -> None:
    monkeypatch.setattr(hardware, "multiplies_bf16", lambda: fast)
    run = compose(["policy.dtype=auto", "engine.dtype=auto"])
    assert (run.policy.dtype, run.engine.dtype) == (dtype, dtype)
    run = compose(["policy.dtype=fp32", "engine.dtype=bf16"])
    assert (run.policy.dtype, run.engine.dtype) == ("fp32", "bf16")
