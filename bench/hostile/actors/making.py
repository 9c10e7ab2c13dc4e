"""It makes all filters before anything is broken."""

from __future__ import annotations

from bench.hostile.actors.blocking import Opened
from bench.hostile.actors.part import Part
from bench.hostile.filters import SETTINGS


def run(part: Part) -> None:
    """Make them, and say which uids they have."""
    say_uids(part, Opened(part))


def say_uids(part: Part, opened: Opened) -> None:
    """Open or make all filters, and say which uids they have."""
    for name in SETTINGS:
        part.log.say("made", filter=name, uid=opened.get(name).config.uid)
