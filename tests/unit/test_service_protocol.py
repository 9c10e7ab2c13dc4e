"""What the service's protocol takes from uvicorn."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path


def test_uvicorn_is_one_that_was_tested():
    """It overrides uvicorn's internals, so uvicorn has an upper bound, and the tests run with a release below it."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (wanted,) = [
        each
        for each in tomllib.loads(text)["project"]["optional-dependencies"]["server"]
        if re.match(r"uvicorn\b", each)
    ]
    below = tuple(map(int, wanted.partition("<")[2].split(".")))
    installed = tuple(map(int, version("uvicorn").split(".")[:2]))
    assert below
    assert installed < below
