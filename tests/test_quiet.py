"""Libraries' chatter does not come before our own words; their warnings and errors do come."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

from nemo_specrl.quiet import no_progress_bars, quiet_libraries

LOGGERS = ("", "nemo_specrl", "mlflow", "alembic", "megatron", "nv_one_logger")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    with warnings.catch_warnings():
        yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_start_up_of_nemo_and_megatron_is_silent() -> None:
    """The real libraries: their words change with their versions. Two dozen lines came before ours."""
    code = (
        "from nemo_specrl.quiet import quiet_libraries; quiet_libraries()\n"
        "import nemo.core.config, megatron.core.optimizer, megatron.core.models.gpt.gpt_layer_specs\n"
        "from megatron.core.transformer import TransformerConfig\n"
        "TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "text", ["the loss is not finite", "scope is deprecated", "Apex is broken", "checkpointing is slow"]
)
def test_other_warnings_stay(text: str) -> None:
    quiet_libraries()
    with pytest.warns(UserWarning, match=text):
        warnings.warn(text, stacklevel=1)


def test_errors_of_a_quiet_library_and_our_own_words_stay(caplog: pytest.LogCaptureFixture) -> None:
    quiet_libraries()
    logging.getLogger("nv_one_logger.api").warning("nobody asked")
    logging.getLogger("nv_one_logger.api").error("broken")
    logging.getLogger("alembic.runtime").info("a migration")
    logging.getLogger("mlflow.store").warning("a slow server")
    logging.getLogger("somebody").info("hello")
    logging.getLogger("nemo_specrl.training").info("ours")
    assert [record.message for record in caplog.records] == ["broken", "a slow server", "ours"]


def test_progress_bars_are_gone_and_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    from tqdm.auto import tqdm
    from transformers.utils import logging as transformers_logging

    def count() -> str:
        assert list(tqdm(range(3), desc="converting")) == [0, 1, 2]
        assert list(transformers_logging.tqdm(range(3), desc="loading")) == [0, 1, 2]
        return capfd.readouterr().err

    with no_progress_bars():
        assert count() == ""
    shown = count()
    assert "converting: 100%" in shown
    assert "loading: 100%" in shown
