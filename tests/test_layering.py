"""Imports only go down the house's floors."""

import ast
from pathlib import Path

import thinwire

ROOT = Path(thinwire.__file__).parent
FLOORS = {
    "errors": 0,
    "types": 0,
    "kernels": 1,
    "levels": 2,
    "schemes": 3,
    "wire": 4,
    "feedback": 4,
    "policies": 4,
    "monitor": 5,
    "collectives": 5,
    "integrations": 6,
    "ddp": 6,
    "lab": 7,
    "cli": 8,
    "__main__": 8,
}
FACE = {"__init__", "__version__"}  # the package itself: re-exports, and imports nothing above the wire but faces


def imports_of(path: Path) -> set[str]:
    """Parts of thinwire that a file imports at run time."""
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "thinwire":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("thinwire.")}
    return found


def test_no_import_goes_up():
    upward = []
    for path in sorted(ROOT.rglob("*.py")):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for target in imports_of(path):
            if target in FLOORS and FLOORS[target] > FLOORS[part]:
                upward.append(f"{path.relative_to(ROOT)} (floor {FLOORS[part]}) imports {target} ({FLOORS[target]})")
    assert not upward, "\n".join(upward)


def test_every_part_has_a_floor():
    parts = {
        p.stem if p.is_file() else p.name for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    assert parts - {"__init__"} <= set(FLOORS)


def test_nothing_imports_the_cli_and_only_the_cli_imports_the_lab():
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        targets = imports_of(path)
        assert "cli" not in targets or part in ("cli", "__main__"), path
        assert "lab" not in targets or part in ("lab", "cli"), path


def test_schemes_and_below_know_no_ranks():
    for part in ("kernels", "levels", "schemes", "wire"):
        for path in (ROOT / part).rglob("*.py"):
            assert "torch.distributed" not in path.read_text(), path
