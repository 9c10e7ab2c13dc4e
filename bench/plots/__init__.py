"""Charts of the bench as the text of SVG files: ``lines`` has figures over numbers of items, ``bars`` compares peers.

Both are pure functions: they open no file, and equal input makes equal text. A file follows the colour scheme of its
reader, loads nothing, and says in words what it shows.

    scales      axes, round ticks, numbers as text
    looks       the colours and shapes of peers, light and dark
    picture     the parts of an SVG
    places      labels beside the ends of lines, none over another
    line_chart  lines
    bar_chart   bars

The text is written here rather than by matplotlib, whose files of the same chart are four times as large, carry their
colours in each element, so that no style sheet can turn them dark, and have neither a title nor a description.
"""

from bench.plots.bar_chart import Bar, bars
from bench.plots.line_chart import Series, lines
from bench.plots.scales import Axis

__all__ = ["Axis", "Bar", "Series", "bars", "lines"]
