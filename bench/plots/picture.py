"""The parts of an SVG."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from html import escape

from bench.plots.looks import style

#: Pixels.
WIDTH, EDGE, LINE = 720, 16, 21

#: Widths of a letter, in pixels: of text and of titles; those of the widest font that is likely.
LETTER, TITLE_LETTER = 7.4, 9.6

#: The most letters of a name; of a longer one the rest is cut off.
NAME = 28

#: Characters that no XML has.
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Picture:
    """An SVG that grows as parts are put onto it; ``top`` is the first pixel under its title."""

    def __init__(self, title: str, description: str) -> None:
        self._title, self._description = title, description
        self._lines = textwrap.wrap(title, int((WIDTH - 2 * EDGE) / TITLE_LETTER)) or [""]
        self._parts: list[str] = []
        self.top = EDGE + LINE * len(self._lines)
        for place, line in enumerate(self._lines, 1):
            self.text(EDGE, EDGE - 4 + LINE * place, line, "title")

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Write a line; ``y`` is its foot."""
        self.put(f'<text x="{short(x)}" y="{short(y)}"{_class(kind)}>{escaped(words)}</text>')

    def path(self, points: Iterable[tuple[float, float]], kind: str, more: str = "") -> None:
        """Draw a line through points."""
        way = "L".join(f"{short(x)} {short(y)}" for x, y in points)
        self.put(f'<path d="M{way}"{_class(kind)}{more}/>')

    def box(self, corner: tuple[float, float], other: tuple[float, float], kind: str) -> None:
        """Fill a box from its upper left corner to the lower right one."""
        size = f'width="{short(other[0] - corner[0])}" height="{short(other[1] - corner[1])}"'
        self.put(f'<rect class="mark {kind}" x="{short(corner[0])}" y="{short(corner[1])}" {size}/>')

    def mark(self, at: tuple[float, float], shape: str, kind: str) -> None:
        """Draw a mark around a place."""
        shift = f"translate({short(at[0])} {short(at[1])})"
        self.put(f'<path class="mark {kind}" transform="{shift}" d="{shape}"/>')

    def put(self, part: str) -> None:
        """Append an element, in a line of its own."""
        self._parts.append(f"{part}\n")

    def done(self, height: float) -> str:
        """Return the text of the file."""
        size = f'width="{WIDTH}" height="{short(height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {short(height)}" {size} role="img">\n'
        words = f"<title>{escaped(self._title)}</title>\n<desc>{escaped(self._description)}</desc>\n"
        ground = f'<rect class="ground" {size} rx="8"/>\n'
        return "".join([head, words, f"<style>\n{style()}</style>\n", ground, *self._parts, "</svg>\n"])


def _class(kind: str) -> str:
    return f' class="{kind.strip()}"' if kind else ""


def escaped(words: str) -> str:
    """Return words as they stand in XML; characters that no XML has become U+FFFD."""
    return escape(NO_XML.sub("\N{REPLACEMENT CHARACTER}", words))


def short(pixels: float) -> str:
    """Write pixels to a tenth."""
    return f"{round(pixels, 1) + 0.0:g}"


def cut(name: str) -> str:
    """Return a name, without its end if it is long."""
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def width(words: str) -> float:
    """Return about how many pixels words take, rather too many than too few."""
    return LETTER * len(words)
