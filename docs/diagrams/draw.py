"""Draws the diagrams of the pages: ``python docs/diagrams/draw.py`` writes the SVG files beside it.

Each drawing has a background of its own, so that it is read on light and on dark pages.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

__all__ = ["DRAWINGS", "main"]

WIDTH = 720

_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img" aria-label="{title}">
<title>{title}</title>
<style>
text {{ font: 14px system-ui, sans-serif; fill: #1f2933; }}
.key {{ font: 12.5px ui-monospace, "DejaVu Sans Mono", monospace; }}
.fine {{ font-size: 11px; }}
.small {{ font-size: 12.5px; fill: #52606d; }}
.head {{ font-weight: 600; }}
.bad {{ fill: #b42318; }}
.line {{ stroke: #52606d; stroke-width: 1.5; fill: none; }}
.dashed {{ stroke-dasharray: 5 4; }}
.lost {{ stroke: #b42318; }}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 L8 4 L0 8 Z" fill="#52606d"/></marker></defs>
<rect width="{width}" height="{height}" rx="8" fill="#f7f8fa"/>
"""

#: Colours of boxes: the edge and the inside.
PLAIN, NEW, OLD, KEPT = ("#9aa5b1", "#ffffff"), ("#2f855a", "#e6f4ec"), ("#9aa5b1", "#e4e7eb"), ("#2b6cb0", "#e3eefa")


class Drawing:
    """An SVG that grows as shapes are put onto it."""

    def __init__(self, title: str, height: int) -> None:
        self._parts = [_HEAD.format(width=WIDTH, height=height, title=escape(title))]

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line; ``y`` is its foot."""
        self._parts.append(f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>\n')

    def box(self, x: float, y: float, width: float, height: float, colours: tuple[str, str] = PLAIN) -> None:
        """Draw a box."""
        edge, inside = colours
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{inside}" stroke="{edge}" '
            'stroke-width="1.5"/>\n'
        )

    def labelled(self, x: float, y: float, width: float, words: str, colours: tuple[str, str] = PLAIN) -> None:
        """Draw a box with the name of a key in it."""
        self.box(x, y, width, 28, colours)
        self.text(x + width / 2, y + 19, words, "key", "middle")

    def line(self, *points: float, kind: str = "", tip: bool = True) -> None:
        """Draw a line through points (x, y, x, y …)."""
        pairs = " L".join(f"{x} {y}" for x, y in zip(points[::2], points[1::2], strict=True))
        end = ' marker-end="url(#tip)"' if tip else ""
        self._parts.append(f'<path d="M{pairs}" class="line {kind}"{end}/>\n')

    def done(self) -> str:
        """Return the text of the file."""
        return "".join([*self._parts, "</svg>\n"])


def keys_and_shards() -> str:
    """An item's way to its shard, and the keys of a filter with three shards."""
    picture = Drawing("An item, its digest and its shard, and the keys of a filter with three shards", 452)
    picture.text(24, 34, "item", "head")
    picture.box(24, 44, 196, 30)
    picture.text(122, 64, "https://example.com/", "key", "middle")
    picture.line(220, 59, 262, 59)
    picture.text(264, 34, "digest: 16 bytes", "head")
    picture.box(264, 44, 278, 30)
    picture.text(403, 64, "9f348cc2269b0ab5bd415398b25dcba4", "key", "middle")
    picture.line(542, 59, 584, 59)
    picture.text(586, 34, "shard", "head")
    picture.box(586, 44, 110, 30, NEW)
    picture.text(641, 64, "2 of 0, 1, 2", "key", "middle")
    picture.text(264, 94, "Its last 12 bits are 0xa4c = 2,636, and 2,636 mod 3 = 2.", "small")
    shards = (("{news:0}", PLAIN, 24), ("{news:1-1}", PLAIN, 252), ("{news:2-1}", NEW, 480))
    for number, (tag, colours, x) in enumerate(shards):
        picture.box(x, 124, 216, 232, colours)
        picture.text(x + 12, 146, f"shard {number}", "head")
        picture.text(x + 204, 146, "one slot of a cluster", "small", "end")
        for row, (key, meaning) in enumerate(
            (
                ("meta", "settings and state"),
                ("today", "the newest bitmap"),
                ("replies", "records of calls"),
                ("forgotten", "items made new again"),
            )
        ):
            picture.text(x + 12, 174 + 48 * row, f"urifilter:{tag}:{key}", "key fine")
            picture.text(x + 12, 192 + 48 * row, meaning, "small")
    picture.line(641, 74, 641, 122)
    picture.box(24, 376, 672, 54)
    picture.text(36, 398, "urifilter:filters", "key")
    picture.text(36, 417, "the names of all filters of the server; it belongs to no shard", "small")
    return picture.done()


def rotation() -> str:
    """The bitmaps of a shard of a rolling filter while it rotates."""
    moments: tuple[tuple[str, str, tuple[tuple[int, str, tuple[str, str]], ...]], ...] = (
        (
            "before",
            "Calls look at history and today.",
            ((0, "history", OLD), (2, "today", KEPT), (3, "slice:1 … 6", PLAIN)),
        ),
        (
            "1. allocate",
            "The next today is made, in its full length.",
            ((0, "history", OLD), (2, "today", KEPT), (3, "today_next", NEW)),
        ),
        (
            "2. turn",
            "Bitmaps get new names. Calls look at all three.",
            ((0, "history", OLD), (1, "history_1", KEPT), (2, "today", NEW)),
        ),
        (
            "3. store",
            "history_1 is packed, as the slice of epoch 7.",
            ((0, "history", OLD), (1, "history_1", KEPT), (2, "today", NEW), (3, "slice:7", KEPT)),
        ),
        (
            "4. build",
            "history_1 gets the bits of the older slices.",
            ((0, "history", OLD), (1, "history_1", KEPT), (2, "today", NEW), (3, "slice:2 … 6", PLAIN)),
        ),
        (
            "5. finish",
            "history_1 is the history now. The old history and slice:1 are gone.",
            ((0, "history", KEPT), (2, "today", NEW), (3, "slice:2 … 7", PLAIN)),
        ),
    )
    picture = Drawing(
        "The bitmaps of a shard of a rolling filter of 7 slices, before, during and after a rotation", 520
    )
    for column, words in enumerate(("older", "closed just now", "newest", "not looked at")):
        picture.text(211 + 142 * column, 32, words, "small", "middle")
    for row, (name, meaning, bitmaps) in enumerate(moments):
        y = 46 + 78 * row
        picture.text(24, y + 20, name, "head")
        for column, key, colours in bitmaps:
            picture.labelled(146 + 142 * column, y, 130, key, colours)
        picture.text(146, y + 47, meaning, "small")
    return picture.done()


def lost_reply() -> str:
    """A call whose reply is lost, and its repeat."""
    picture = Drawing("A reply is lost, and the repeat under the same call id gets the same answer", 430)
    crawler, server = 130, 590
    for x, name in ((crawler, "crawler"), (server, "Redis")):
        picture.box(x - 60, 20, 120, 30)
        picture.text(x, 40, name, "head", "middle")
        picture.line(x, 50, x, 330, kind="dashed", tip=False)
    picture.text(360, 82, "insert https://example.com/, call id …/0/7", "small", "middle")
    picture.line(crawler, 92, server - 2, 92)
    picture.box(server - 110, 104, 220, 46, NEW)
    picture.text(server, 122, "The bits are set, and", "small", "middle")
    picture.text(server, 140, "the record of …/0 is: 7, new.", "small", "middle")
    picture.text(430, 164, "reply: new", "small", "middle")
    picture.line(server, 174, 330, 174, kind="lost", tip=False)
    picture.text(318, 180, "✗", "head bad", "middle")
    picture.text(300, 180, "lost", "small bad", "end")
    picture.text(360, 222, "the same call again, call id …/0/7", "small", "middle")
    picture.line(crawler, 232, server - 2, 232)
    picture.box(server - 110, 244, 220, 46, KEPT)
    picture.text(server, 262, "The record of …/0 has", "small", "middle")
    picture.text(server, 280, "number 7: nothing is done.", "small", "middle")
    picture.text(330, 304, "reply from the record: new", "small", "middle")
    picture.line(server, 314, crawler + 2, 314)
    picture.box(24, 346, 672, 66)
    picture.text(36, 370, "With a call id the crawler hears “new”, and fetches the page.")
    picture.text(36, 394, "Without one the repeat would hear “seen”, and nobody would fetch the page.", "bad")
    return picture.done()


#: The drawings, by the names of their files.
DRAWINGS = {"keys-and-shards": keys_and_shards, "lost-reply": lost_reply, "rotation": rotation}


def main() -> None:
    """Write all files."""
    for name, draw in DRAWINGS.items():
        Path(__file__).with_name(f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
