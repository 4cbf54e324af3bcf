"""The rooms of the package and who may import whom, read from every import statement there is.

A room may import itself, those before it in the list, `partita.errors` and `partita.files`. `partita`
itself, the public API, lies above all rooms, so only `cli` may import from it.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import partita

PACKAGE = Path(partita.__file__).parent
ROOMS = [
    "specs",
    "sharding",
    "program",
    "cost",
    "scheduler",
    "simulation",
    "planner",
    "advice",
    "checkpoints",
    "engine",
    "server",
    "measure",
    "report",
    "cli",
]
WITHOUT_JAX = ROOMS[: ROOMS.index("engine")]
APART = [("cost", "engine")]
"""Neither may import the other, whatever their order."""

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path, package: Path = PACKAGE) -> str:
    """The full name of a file's module."""
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module's text imports, at any depth, by statement or by name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = module.split(".")[: None if is_package else -1]
                around = around[: len(around) - node.level + 1]
                base = ".".join([*around, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def room_of(name: str) -> str:
    """The room of a full name; empty for the package's own files, such as `partita.errors`."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def wrongs(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports that break the rules, each with its line."""
    room, found = room_of(module), []
    for line, name in imports(source, module, is_package):
        top, other = name.split(".")[0], room_of(name)
        if top in ("jax", "jaxlib"):
            wrong = room in WITHOUT_JAX or not room
        elif top != "partita" or name.startswith(("partita.errors", "partita.files")):
            wrong = False
        elif other:
            wrong = bool(room) and (
                ROOMS.index(other) > ROOMS.index(room) or (room, other) in APART or (other, room) in APART
            )
        else:
            wrong = bool(room) and room != "cli"
        if wrong:
            found.append(f"{module}:{line} imports {name}")
    return found


def test_every_file_is_in_a_room_or_at_the_door():
    inside = {file.relative_to(PACKAGE).parts[0] for file in FILES if file.parent != PACKAGE}
    assert inside <= set(ROOMS)
    assert {"specs", "sharding", "program", "cost", "engine"} <= inside


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_to_rooms_above(file: Path):
    assert wrongs(file.read_text(encoding="utf-8"), module_of(file), file.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("partita.specs.model", "from partita.sharding import Mesh"),
        ("partita.specs.model", "import partita.sharding.mesh"),
        ("partita.specs.model", "from partita import sharding"),
        ("partita.specs.model", "from ..sharding import Mesh"),
        ("partita.specs.model", "from .. import sharding"),
        ("partita.cost.ops", "def f():\n    if True:\n        from partita.engine import ops"),
        ("partita.engine.ops", "from partita.cost.ledger import Ledger"),
        ("partita.sharding.spec", "import jax"),
        ("partita.sharding.spec", "import numpy, jax.numpy as jnp"),
        ("partita.planner.search", "def f():\n    from jax.sharding import PartitionSpec"),
        ("partita.checkpoints.gguf", "import importlib\nimportlib.import_module('jax')"),
        ("partita.cost.step", "__import__('partita.engine.ops')"),
        ("partita.cost.step", "import partita"),
        ("partita.server.http", "from partita import plan"),
        ("partita.version", "import jax"),
        (
            "partita.engine.engine",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import partita.server",
        ),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str):
    assert len(wrongs(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("partita.cost.ops", "from partita.specs.model import Model"),
        ("partita.cost.ops", "from .ledger import Ledger"),
        ("partita.cost.ops", "from ..errors import InputError"),
        ("partita.cost.ops", "from partita.errors import InputError\nimport numpy as np"),
        ("partita.engine.ops", "import jax\nfrom partita.checkpoints.protocol import Checkpoint"),
        ("partita.measure.verify", "from partita.cost.step import price_step\nimport partita.engine.ops"),
        ("partita.cli.main", "from partita import plan"),
        ("partita.api", "def engine():\n    from partita.engine.engine import Engine"),
    ],
)
def test_an_import_that_is_allowed_is_not(module: str, source: str):
    assert wrongs(source, module) == []


def test_relative_imports_of_a_package_start_inside_it():
    assert list(imports("from . import ops", "partita.cost", is_package=True)) == [(1, "partita.cost.ops")]
    assert list(imports("from . import ops", "partita.cost.step")) == [(1, "partita.cost.ops")]


def test_everything_before_the_engine_is_imported_without_jax():
    """A process of its own shows it for these modules and for every package that they import."""
    modules = ["partita", "partita.errors"]
    modules += [module_of(file) for file in FILES if room_of(module_of(file)) in WITHOUT_JAX]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(sorted(name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib')))"
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, *modules],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
    assert len(modules) > 10
