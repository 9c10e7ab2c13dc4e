"""The folder where a user's data is: the embedded server's, and which filters have an archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["DATA_DIR_VARIABLE", "default_data_dir"]

#: The environment's folder for data, sockets, locks and this.
DATA_DIR_VARIABLE = "URIFILTER_DATA_DIR"


def default_data_dir() -> Path:
    """Return ``URIFILTER_DATA_DIR``, else the folder where this platform keeps a user's data."""
    if given := os.environ.get(DATA_DIR_VARIABLE):
        return Path(given).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "urifilter"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "urifilter"
