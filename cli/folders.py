"""Writing several files into a folder: each is whole or not there, and no other file is overwritten."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["write_files"]


def write_files(folder: Path, files: Mapping[str, bytes], may_replace: Callable[[Path], bool]) -> None:
    """Write files into a folder, which is made if it is missing.

    All files are written under temporary names first. So a full disk leaves the folder as it was.

    Args:
        folder: the folder.
        files: the content of each file by its name; the files appear in this order.
        may_replace: whether an existing file, whose content differs, may be overwritten.

    Raises:
        ValueError: the folder has files that may not be overwritten; the message names some.
        OSError: the folder cannot be made or written to; the message has the reason.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder")
    try:
        _check(folder, files, may_replace)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, files)
    except OSError as error:
        raise OSError(f"{folder}: nothing was written: {error.strerror or error}") from error


def _check(folder: Path, files: Mapping[str, bytes], may_replace: Callable[[Path], bool]) -> None:
    for name in files:
        if (folder / name).is_dir():
            raise ValueError(f"{folder / name} is a folder: remove it, or name another folder")
    kept = [name for name, data in files.items() if not _is_free(folder / name, data, may_replace)]
    if kept:
        more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""  # noqa: PLR2004 - names enough to find the cause
        advice = "name another folder, or overwrite them with --force"
        raise ValueError(f"{folder} has files of others: {', '.join(kept[:3])}{more}: {advice}")


def _is_free(path: Path, data: bytes, may_replace: Callable[[Path], bool]) -> bool:
    return not path.exists() or path.read_bytes() == data or may_replace(path)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    mark = f".{secrets.token_hex(4)}.part"
    try:
        for name, data in files.items():
            with (folder / (name + mark)).open("xb") as file:
                file.write(data)
        for name in files:
            (folder / (name + mark)).replace(folder / name)
    finally:
        for name in files:
            with contextlib.suppress(OSError):
                (folder / (name + mark)).unlink(missing_ok=True)
