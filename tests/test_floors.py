"""Arrows point down only; and a few rules that every file keeps."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "nemo_specrl"
FLOORS: list[set[str]] = [
    {"cli"},
    {"commands"},
    {"training", "reporting", "cluster", "nemo_rl"},
    {"rollout"},
    {"drafting"},
    {"policy", "algorithms", "rewards", "data", "tracking"},
    {"models"},
    {"speculation"},
    {"contracts"},
    {"config", "types"},
    {"files", "handover", "packages", "processes", "quiet"},
]
"""From the top. What two floors speak of lies in `contracts`, below both."""
SIDEWAYS = {
    ("training", "reporting"): None,
}
"""Imports within a floor that are meant, and which modules they may take; None = any."""


def floor(room: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, type-checking imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nemo_specrl"):
            found.add(node.module)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("nemo_specrl")}
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """nemo_specrl.room.file"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def targets(path: Path) -> set[str]:
    """As `imports`, but a module that is imported from its package by name is itself what is meant."""
    known = {module_name(module) for module in MODULES}
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known) | ({node.module} if names - known else set())
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for module in imports(path):
        parts = module.split(".")
        if len(parts) < 2 or parts[1] in (room, "conf"):
            continue
        if floor(room) == floor(parts[1]):
            allowed = SIDEWAYS.get((room, parts[1]), set())
            assert allowed is None or (len(parts) > 2 and parts[2] in allowed), f"{room} must not import {module}"
        else:
            assert floor(room) < floor(parts[1]), f"{room} must not import {module}: arrows point down"


def test_speculation_stands_on_the_ground_floors_only() -> None:
    ground = {"speculation", "contracts", "config", "types", "files"}
    for path in (PACKAGE / "speculation").glob("*.py"):
        assert {m.split(".")[1] for m in imports(path)} <= ground, path


def test_no_module_imports_one_that_imports_it() -> None:
    """Circles of any length, inside rooms too, imports in functions and for type checkers included."""
    arrows = {module_name(path): targets(path) - {module_name(path)} for path in MODULES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above[above.index(module) :], module])
        if module not in done:
            for below in sorted(arrows[module]):
                visit(below, (*above, module))
            done.add(module)

    for module in arrows:
        visit(module, ())


def test_every_room_is_on_a_floor() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))} - {"__pycache__"}
    assert rooms <= set().union(*FLOORS)


def test_files_are_small() -> None:
    lengths = sorted(len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")
    assert lengths[-1] <= 600
    assert lengths[len(lengths) // 2] <= 150


def test_nothing_unfinished_is_shipped() -> None:
    marks = re.compile(r"NotImplementedError|TODO|FIXME|XXX|pragma: no cover")
    assert [p.name for p in PACKAGE.rglob("*.py") if marks.search(p.read_text())] == []


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_machine_paths_or_registry_hosts_are_committed() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    forbidden = re.compile(
        r"/root/|/work/main|/opt/wheels|pypi\.org|files\.pythonhosted|registry\.npmjs|deb\.debian\.org"
    )
    for name in files:
        path = ROOT / name
        if path.is_file() and path.suffix != ".png" and path != Path(__file__):
            match = forbidden.search(path.read_text(errors="replace"))
            assert match is None, f"{name} names {match and match[0]}"
