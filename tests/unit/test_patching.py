"""Tests replace nothing private of the library, so that its insides may change without them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SOURCES = sorted(TESTS.rglob("*.py"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def way_of(node: ast.expr) -> list[str]:
    """The names from a root to an attribute: ``a.b().c`` is a, b, c."""
    if isinstance(node, ast.Attribute):
        return [*way_of(node.value), node.attr]
    if isinstance(node, ast.Call):
        return way_of(node.func)
    if isinstance(node, ast.Subscript):
        return way_of(node.value)
    return [node.id] if isinstance(node, ast.Name) else ["?"]


def is_foreign(way: list[str]) -> bool:
    """Whether a way leads through something private, of another object than a test's own ``self``."""
    own = 2 if way[0] in {"self", "cls"} else 1
    return any(is_private(name) for name in way[own:])


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement writes to or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        found = node.targets
    else:
        found = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For) else []
    return [each for target in found for each in getattr(target, "elts", [target])]


def patched(node: ast.AST) -> list[list[str]]:
    """The ways to what a node replaces: by writing, or by setattr, delattr and patch, monkeypatch's and others'."""
    found = [way_of(each) for each in targets(node) if isinstance(each, ast.Attribute | ast.Subscript)]
    if isinstance(node, ast.Call) and node.args:
        how = way_of(node.func)[-1]
        first, second = node.args[0], node.args[1] if len(node.args) > 1 else None
        if how in {"setattr", "delattr", "patch"} and isinstance(first, ast.Constant) and isinstance(first.value, str):
            found.append(first.value.split("."))
        elif how in {"setattr", "delattr", "setitem", "delitem", "object"}:
            named = [second.value] if isinstance(second, ast.Constant) and isinstance(second.value, str) else []
            found.append([*way_of(first), *(named if how.endswith(("attr", "object")) else [])])
    return found


def private_patches(source: str) -> list[str]:
    nodes = ast.walk(ast.parse(source))
    return [f"line {node.lineno}: {'.'.join(way)}" for node in nodes for way in patched(node) if is_foreign(way)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(TESTS)))
def test_nothing_private_is_replaced(path):
    """Drivers have a hook for each step (``perform_step``), and connectors can be made by a test."""
    assert private_patches(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "module._name = 1",
        "news._connector.send = 1",
        "self.news._connector.send = 1",
        "a, module._name = 1, 2",
        "module._names['x'] = 1",
        "del module._name",
        "module._count += 1",
        "setattr(module, '_name', 1)",
        "monkeypatch.setattr(module, '_name', 1)",
        "monkeypatch.setattr(news._connector, 'send', 1)",
        "monkeypatch.setattr('package.module._name', 1)",
        "monkeypatch.setitem(module._names, 'x', 1)",
        "monkeypatch.delattr(module, '_name')",
        "mock.patch('package.module._name')",
        "mock.patch.object(module, '_name')",
    ],
)
def test_it_is_found(source):
    """However it is written."""
    assert len(private_patches(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "self._name = 1",
        "self._names['x'] = 1",
        "_name = 1",
        "client = news._session.ids.client",
        "module.name = news._name",
        "monkeypatch.setattr(driver, 'perform_step', self._counted)",
        "monkeypatch.setattr('package.module.name', 1)",
        "monkeypatch.setitem(environment, '_name', 1)",
        "module.__file__ = 1",
    ],
)
def test_what_is_no_patch(source):
    """A test's own, what is only read, and what is public."""
    assert private_patches(source) == []
