"""It makes all filters before anything is broken."""

from __future__ import annotations

from bench.hostile.actors.blocking import Opened
from bench.hostile.actors.part import Part
from bench.hostile.filters import SETTINGS


def run(part: Part) -> Opened:
    """Open or make all of them, and say which uids they have."""
    opened = Opened(part)
    for name in SETTINGS:
        part.log.say("made", filter=name, uid=opened.get(name).config.uid)
    return opened
