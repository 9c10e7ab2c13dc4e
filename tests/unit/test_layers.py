"""The layers of the library: an import leads down, or to the same layer, and never around in a circle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "urifilter_redis"

#: From the bottom up; a package stands for all that is in it and is not named itself.
LAYERS = (
    ("_starting", "_version", "errors", "extras"),
    ("bloom",),
    ("protocol",),
    ("engine",),
    ("transport",),
    ("archive",),
    ("flows",),
    ("archive.export", "archive.listing", "archive.upkeep", "archive.verifying"),
    ("http_api", "pickling"),
    ("aio", "base_async", "base_blocking", "base_client", "claiming", "client", "coalescer", "streaming"),
    (PACKAGE,),
    ("worker", "moving", "scrapy", "sdk", "service", "cli"),
)


def modules() -> dict[str, Path]:
    """Every module by its name below the package; cli/ stands beside the package in a checkout."""
    found = {}
    for folder, prefix in ((ROOT / PACKAGE, ""), (ROOT / "cli", "cli.")):
        for path in sorted(folder.rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            found[f"{prefix}{name}".removesuffix(".__init__").removesuffix("__init__") or PACKAGE] = path
    return found


MODULES = modules()


def imported(name: str) -> set[str]:
    """The modules of the library that one imports, also within functions and for types alone."""
    tree, found = ast.parse(MODULES[name].read_text()), set()
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name.removeprefix(f"{PACKAGE}.") for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").removeprefix(PACKAGE).removeprefix(".")
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            elif (node.module or "").partition(".")[0] != PACKAGE:
                continue
            inner = {f"{base}.{each.name}".removeprefix(".") for each in node.names}
            found |= {each if each in MODULES else base or PACKAGE for each in inner}
    return {each for each in found if each in MODULES} - {name}


def layer_of(name: str) -> int:
    """The number of a module's layer, by the longest name that stands for it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for number, layer in enumerate(LAYERS):
            if ".".join(parts[:length]) in layer:
                return number
    raise AssertionError(f"{name} is in no layer")


@pytest.mark.parametrize("name", MODULES)
def test_imports_lead_down(name):
    """No module imports one of a higher layer, not even for its types."""
    upward = {each for each in imported(name) if layer_of(each) > layer_of(name)}
    assert upward == set(), f"{name} imports {', '.join(sorted(upward))}, of a higher layer"


@pytest.mark.slow
def test_no_circles():
    """No module imports, by way of others, itself."""
    below = {name: imported(name) for name in MODULES}
    while leaves := [name for name, imports in below.items() if not imports & below.keys()]:
        for leaf in leaves:
            del below[leaf]
    assert sorted(below) == [], "these modules import each other in a circle, or import such"
