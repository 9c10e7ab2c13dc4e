"""Filters that go from an archive into a file, and from a file into an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.archives import on
from urifilter_redis.archive import export, importing

if TYPE_CHECKING:
    from pathlib import Path

    from urifilter_redis.protocol.config import Config


def export_to(archive: str, name: str, file: Path) -> None:
    on(archive, export.export, name, file, lambda *_: None)


def import_from(archive: str, file: Path, shards: int | None = None) -> tuple[str, Config]:
    return on(archive, importing.import_, file, lambda *_: None, shards)
