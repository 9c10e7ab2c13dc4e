"""The folder of a user's data: that of the embedded server, and the list of filters that have an archive."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["DATA_DIR_VARIABLE", "IDENTITY", "default_data_dir", "has_usable_data_dir"]

#: The environment variable with the folder for data, sockets and locks.
DATA_DIR_VARIABLE = "URIFILTER_DATA_DIR"

#: The setting ``syslog-ident`` of the embedded server, by which ``doctor`` knows it.
IDENTITY = "urifilter"


def default_data_dir() -> Path:
    """Return the folder in ``URIFILTER_DATA_DIR``, or else the platform's folder for a user's data.

    Raises:
        OSError: no variable names one, and the user has no home.
    """
    if given := os.environ.get(DATA_DIR_VARIABLE):
        return Path(given).absolute()
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "urifilter"
    return Path(os.environ.get("XDG_DATA_HOME") or _home() / ".local" / "share") / "urifilter"


def has_usable_data_dir() -> bool:
    """Whether this user can keep data in ``default_data_dir()``, which is made if it is missing."""
    try:
        folder = default_data_dir()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise OSError(f"HOME is not set, and the system has no home for user {os.getuid()}") from error
