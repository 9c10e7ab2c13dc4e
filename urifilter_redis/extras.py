"""How to get what an extra of this package brings."""

from __future__ import annotations


def how_to_get(extra: str) -> str:
    """Return the command that installs an extra: from a checkout, as long as no package index has a release."""
    return f"pip install '.[{extra}]' in the checkout"
