"""What the service's protocol takes from uvicorn."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path


def test_uvicorn_is_one_that_was_tested():
    """It overrides what uvicorn keeps for itself, so a newer one than that of the tests is not installed beside it."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (wanted,) = [
        each
        for each in tomllib.loads(text)["project"]["optional-dependencies"]["server"]
        if re.match(r"uvicorn\b", each)
    ]
    major, minor, *_ = map(int, version("uvicorn").split("."))
    assert wanted.endswith(f",<{major}.{minor + 1}")
