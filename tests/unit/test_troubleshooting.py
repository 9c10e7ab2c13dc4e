"""The pages about running it name messages, errors and metrics as the code has them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from urifilter_redis import errors
from urifilter_redis.http_api import ERROR_CODES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()

#: The messages in the first column of the tables; error codes and names of classes are no messages.
MESSAGES = [
    message for message in re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE) if " " in message or "…" in message
]


def texts_of(path: Path) -> list[str]:
    """Return the texts of a module; that of an f-string in its parts."""
    return [
        each.value
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


@pytest.fixture(scope="module")
def texts():
    """All texts of the code, one a line."""
    modules = [path for folder in ("urifilter_redis", "cli") for path in (ROOT / folder).rglob("*.py")]
    lua = [path.read_text() for path in (ROOT / "lua").glob("*.lua")]
    return "\n".join([*(text for path in modules for text in texts_of(path)), *lua])


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_those_of_the_code(texts, message):
    """Each part of a quoted message, between its …, is in a text of the code."""
    parts = [part.strip() for part in message.split("…")]
    assert [part for part in parts if part.strip(":;,. ") and part not in texts] == []


def test_enough_messages_are_quoted():
    """The tables are read, and not passed over."""
    assert len(MESSAGES) > 60


def test_every_error_is_there():
    """Each class of errors, and each error code of the service, has its remedy."""
    assert [name for name in errors.__all__ if f"`{name}`" not in PAGE] == []
    assert [code for code in ERROR_CODES if f"`{code}`" not in PAGE] == []
