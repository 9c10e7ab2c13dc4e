"""The folder of a user's data: that of the embedded server, and the list of filters that have an archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["DATA_DIR_VARIABLE", "IDENTITY", "default_data_dir"]

#: The environment variable with the folder for data, sockets and locks.
DATA_DIR_VARIABLE = "URIFILTER_DATA_DIR"

#: The setting ``syslog-ident`` of the embedded server, by which ``doctor`` knows it.
IDENTITY = "urifilter"


def default_data_dir() -> Path:
    """Return the folder in ``URIFILTER_DATA_DIR``, or else the platform's folder for a user's data."""
    if given := os.environ.get(DATA_DIR_VARIABLE):
        return Path(given).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "urifilter"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "urifilter"
