"""The configuration reference, generated from the dataclasses: `python -m nemo_specrl.config.reference`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap

from nemo_specrl.config.bounds import bound_of
from nemo_specrl.config.compose import groups, schema_keys
from nemo_specrl.config.run import RunConfig

HEADER = """\
# Configuration reference

Generated from the dataclasses in `nemo_specrl/config` by `make docs`; a test keeps it current.
Set a key on the command line (`policy.lr=1e-5`), choose a file of a group (`reuse=lenient`), or write an experiment
file in `conf/experiment`. An unknown key says what you may have meant; an impossible combination fails before anything
is loaded. `--dump-config` prints the resolved run; the same is kept as `run.json` in the run's folder.
"""


def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the string literal under it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            docs[before.target.id] = " ".join(str(after.value.value).split())
    return docs


def default_text(item: dataclasses.Field[object]) -> str:
    """The default, as one would write it on the command line."""
    if item.default is not dataclasses.MISSING:
        value = item.default
    else:
        assert item.default_factory is not dataclasses.MISSING
        value = item.default_factory()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value) if isinstance(value, tuple) else value)


def reference() -> str:
    """The whole page, Markdown."""
    lines = [HEADER, "## Groups and their options\n"]
    lines += [f"- `{group}`: {', '.join(f'`{option}`' for option in options)}" for group, options in groups().items()]
    section = None
    for key, item, cls in schema_keys():
        if cls is not section:
            section = cls
            title = "The run" if cls is RunConfig else key.rsplit(".", 1)[0]
            lines += [
                f"\n## {title}\n",
                f"{inspect.getdoc(cls)}\n",
                "| key | type | default | meaning |",
                "|---|---|---|---|",
            ]
        meaning = field_docs(cls)[item.name]
        bound = bound_of(item)
        if bound is not None and bound.choices:
            meaning += f" One of {', '.join(f'`{choice}`' for choice in bound.choices)}."
        elif bound is not None:
            meaning += f" Must {bound.describe()}."
        cells = [f"`{key}`", f"`{item.type}`", f"`{default_text(item)}`", meaning]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
