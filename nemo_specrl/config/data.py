"""Where prompts come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemo_specrl.config.bounds import bounded


@dataclass(frozen=True)
class DataConfig:
    """Rows -> prompts. Rows are validated before anything heavy is loaded."""

    source: str = "arithmetic"
    """`arithmetic` (built in, deterministic); a file: JSON lines, a JSON array, CSV, TSV or Parquet, told apart by
    its ending; or a Hugging Face datasets name."""
    split: str = "train"
    """Split of a datasets name."""
    name: str | None = None
    """Configuration of a datasets name (its `name=` argument)."""
    columns: dict[str, str] = field(default_factory=lambda: {"prompt": "prompt", "answer": "answer"})
    """Our field -> the source's column: `prompt` (text or a list of chat messages), `answer`, optional `source`."""
    system_prompt: str | None = None
    """Put before every text prompt as a system message; null = none."""
    prompt_template: str = "{prompt}"
    """Wraps a text prompt; must contain {prompt}."""
    enable_thinking: bool | None = None
    """Passed to chat templates that know it (Qwen3); null = the template's default."""
    max_prompt_tokens: int = bounded(1024, at_least=1)
    """A longer prompt is an error that names the row, unless `drop_long_prompts`."""
    drop_long_prompts: bool = False
    """Leave over-long prompts out (their number is logged) in place of refusing them."""
    limit: int | None = bounded(None, at_least=1)
    """Use only the first so many rows; null = all."""
    shuffle: bool = True
    """Shuffle the prompts anew in every epoch, by the run's seed. Reuse does not need a fixed order."""
    digits: tuple[int, int] = (1, 2)
    """Arithmetic only: the fewest and the most digits of an operand."""
    operations: str = "+-"
    """Arithmetic only: which of + - * appear."""
    terms: tuple[int, int] = (2, 2)
    """Arithmetic only: the fewest and the most operands."""
    size: int = bounded(512, at_least=1)
    """Arithmetic only: number of distinct prompts."""
    seed: int = 0
    """Arithmetic only: the seed that draws the problems (independent of the run's seed)."""
