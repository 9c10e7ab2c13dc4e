"""The charts of the bench: they show their values where they belong, and say them in words."""

from __future__ import annotations

import itertools
import math
import random
import re
import xml.etree.ElementTree as ET

import pytest

from bench.peers import ALL
from bench.plots import Axis, Bar, Series, bars, lines
from bench.plots.line_chart import POINTS
from bench.plots.looks import COLOURS, GROUND, PEERS, SHAPES, looks_of, style
from bench.plots.picture import NAME, WIDTH, width
from bench.plots.places import APART, spread
from bench.plots.scales import number, scale_of

ITEMS, TIME = Axis("items", "", log=True), Axis("time of an item", "µs")
LOG_TIME = Axis(TIME.title, TIME.unit, log=True)
OURS = {name for name, (kind, _) in PEERS.items() if kind == "ours"}


def parsed(svg: str) -> ET.Element:
    """The elements, by their names without a name space."""
    root = ET.fromstring(svg)
    for each in root.iter():
        each.tag = each.tag.rpartition("}")[2]
    return root


def of_class(root: ET.Element, kind: str) -> list[ET.Element]:
    """The elements of a class."""
    return [each for each in root.iter() if kind in each.get("class", "").split()]


def places(path: ET.Element) -> list[tuple[float, float]]:
    """The points of a path of straight lines."""
    pairs = (pair.split() for pair in path.get("d", "")[1:].split("L"))
    return [(float(x), float(y)) for x, y in pairs]


def area(root: ET.Element) -> tuple[float, float, float, float]:
    """The left, the right, the top and the bottom of the area of the lines."""
    (axis,) = of_class(root, "axis")
    (left, bottom), (right, _) = places(axis)
    return left, right, min(y for each in of_class(root, "grid") for _, y in places(each)), bottom


def at(text: ET.Element) -> tuple[float, float]:
    """The place of a text."""
    return float(text.get("x", "")), float(text.get("y", ""))


def all_peers(dice: random.Random, ends: tuple[float, ...] = (8,)) -> list[Series]:
    """A line of each peer, that ends at one of some powers of ten; they have halves."""
    return [
        Series(
            name,
            [(10 ** (5 + step / 2), dice.uniform(0.1, 60)) for step in range(int(2 * (dice.choice(ends) - 5)) + 1)],
            name in OURS,
        )
        for name in PEERS
    ]


@pytest.mark.parametrize("y", [TIME, LOG_TIME])
def test_points_lie_inside(y):
    """All points are in the area, as many as were given, by rising x, and a higher value is higher."""
    for seed in range(10):
        given = all_peers(random.Random(seed), ends=(6, 7, 8))
        root = parsed(lines("Time", ITEMS, y, given))
        left, right, top, bottom = area(root)
        assert 0 < left < right < WIDTH
        assert bottom - top >= 250
        drawn = {group[0].text: places(group[1]) for group in root.iter("g")}
        assert {name: len(points) for name, points in drawn.items()} == {each.name: len(each.points) for each in given}
        shown = []
        for each in given:
            found = drawn[each.name]
            assert all(left <= across <= right and top <= row <= bottom for across, row in found)
            assert found == sorted(found)
            shown += zip((value for _, value in each.points), (row for _, row in found), strict=True)
        rows = [row for _, row in sorted(shown)]
        assert all(above <= below for below, above in itertools.pairwise(rows))


def test_logarithmic_places():
    """On a logarithmic axis each decade is as wide as the others, and a value stands where its logarithm does."""
    root = parsed(lines("Time", ITEMS, LOG_TIME, [Series("a", [(1e5, 1), (1e6, 10), (2e6, 20), (1e8, 1000)])]))
    left, right, top, bottom = area(root)
    (path,) = of_class(root, "line")
    shares = [0, 1 / 3, (1 + math.log10(2)) / 3, 1]
    for (x, y), share in zip(places(path), shares, strict=True):
        assert x == pytest.approx(left + share * (right - left), abs=0.06)
        assert y == pytest.approx(bottom - share * (bottom - top), abs=0.06)
    labels = {each.text: at(each)[0] for each in of_class(root, "middle")}
    for power, label in enumerate(("100,000", "1 million", "10 million", "100 million")):
        assert labels[label] == pytest.approx(left + power / 3 * (right - left), abs=0.06)


@pytest.mark.parametrize(
    ("log", "values", "ticks"),
    [
        (False, [3.0, 17.2], (0, 5, 10, 15, 20)),
        (False, [0.3], (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
        (False, [2.6e6, 1], (0, 5e5, 1e6, 1.5e6, 2e6, 2.5e6, 3e6)),
        (False, [-0.4, 1], (-0.5, 0, 0.5, 1)),
        (False, [0.0], (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (False, [-3.9], (-4, -3, -2, -1, 0)),
        (False, [0.1 + 0.2], (0, 0.1, 0.2, 0.3, 0.4)),
        (True, [1e5, 1e8], (1e5, 1e6, 1e7, 1e8)),
        (True, [0.3, 4], (0.2, 0.5, 1, 2, 5)),
        (True, [1.0], (0.5, 1, 2)),
        (True, [1, 4999], (1, 10, 100, 1000)),
        (True, [1e-9, 1e9], (1e-9, 1e-6, 1e-3, 1, 1e3, 1e6, 1e9)),
    ],
)
def test_ticks_are_round(log, values, ticks):
    """Ticks are steps of 1, 2 or 5, or such numbers; as many as have room, and all values lie between the ends."""
    scale = scale_of(Axis("", "", log), values, 10, 310, lambda _: 45)
    assert scale.ticks == ticks
    assert all(10 <= scale.place(each) <= 310 for each in (*values, *ticks))
    assert scale.place(scale.low) == 10
    assert scale.place(scale.high) == 310


def test_ticks_have_room():
    """The less room, the fewer ticks; labels of a chart do not overlap."""
    counts = [len(scale_of(TIME, [97.0], 0, size, lambda _: 30).ticks) for size in (1000, 300, 100, 40)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 10
    assert counts[-1] == 2
    for low, high in itertools.combinations((1, 3e2, 2e5, 7e6, 4e7, 1e8, 1e12), 2):
        root = parsed(lines("", ITEMS, TIME, [Series("a", [(low, 9), (high, 9)])]))
        *labels, _ = of_class(root, "middle")  # the last one is the title of the axis
        ends = [(at(each)[0] - width(each.text) / 2, at(each)[0] + width(each.text) / 2) for each in labels]
        assert len(labels) >= 2
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
        assert ends[0][0] >= 0
        assert ends[-1][1] <= WIDTH


@pytest.mark.parametrize("seed", range(8))
def test_names_do_not_overlap(seed):
    """With all peers every name stands once, inside the picture, and on no other, wherever the lines end."""
    ends = [(8,), (6, 8), (5, 6, 7, 8), (6, 7.5, 8)][seed % 4]
    root = parsed(lines("Time", ITEMS, (TIME, LOG_TIME)[seed // 4], all_peers(random.Random(seed), ends)))
    names = of_class(root, "halo")
    assert sorted(each.text for each in names) == sorted(PEERS)
    boxes = [(*at(each), at(each)[0] + width(each.text)) for each in names]
    assert max(right for _, _, right in boxes) <= WIDTH
    for (left, row, right), (other_left, other_row, other_right) in itertools.combinations(boxes, 2):
        assert abs(row - other_row) >= APART or right <= other_left or other_right <= left
    _, _, top, bottom = area(root)
    assert all(top <= row <= bottom + 6 for _, row, _ in boxes)


@pytest.mark.parametrize("ends", [(8,), (6, 8), (6, 7.5, 8)])
def test_names_are_tied_to_their_lines(ends):
    """From the end of each line a thin one leads to its name; those to names of one column do not cross."""
    root = parsed(lines("Time", ITEMS, TIME, all_peers(random.Random(1), ends)))
    drawn = {group[0].text: places(group[1])[-1] for group in root.iter("g")}
    leads = [places(each) for each in of_class(root, "lead")]
    for (start, _, (right, row)), name in zip(leads, of_class(root, "halo"), strict=True):
        end = drawn[name.text]
        assert start == pytest.approx((end[0] + 5, end[1]), abs=0.11)
        assert at(name) == pytest.approx((right + 10, row + 4.5), abs=0.11)
    for column in {right for *_, (right, _) in leads}:
        rows = sorted((start[1], row) for start, _, (right, row) in leads if right == column)
        assert all(before[1] < after[1] for before, after in itertools.pairwise(rows))


def test_names_keep_off_lines():
    """A name moves off a line that goes on, with some pixels between them."""
    root = parsed(
        lines("", ITEMS, TIME, [Series("on", [(1e5, 5), (1e8, 5)]), Series("short", [(1e5, 5.1), (1e6, 5.1)])])
    )
    (passing, _), rows = of_class(root, "line"), {each.text: at(each)[1] - 4.5 for each in of_class(root, "halo")}
    assert abs(rows["short"] - places(passing)[0][1]) >= APART / 2 + 3
    assert abs(rows["on"] - places(passing)[0][1]) <= 1


def test_marks():
    """Each point has its mark, unless there are so many of them that the line would be hidden."""
    for count, marks in ((10, {"start", "mid", "end"}), (25, {"end"})):
        root = parsed(lines("", ITEMS, TIME, [Series("SADD", [(1e5 + step, step) for step in range(count)])]))
        (path,) = of_class(root, "line")
        (marker,) = root.iter("marker")
        found = {name for name, value in path.items() if value == f"url(#{marker.get('id')})"}
        assert found == {f"marker-{each}" for each in marks}
        assert marker[0].get("d") == SHAPES[PEERS["SADD"][1]]


def test_places_are_the_best():
    """No other places in the same order are nearer to those that are wanted, off lines and labels at their price."""
    dice = random.Random(1)
    rooms = [
        rows
        for rows in itertools.combinations(range(60), 3)
        if all(after - before >= APART for before, after in itertools.pairwise(rows))
    ]
    for _ in range(5):
        wanted = sorted(dice.uniform(0, 59) for _ in range(3))
        band = (start := dice.uniform(0, 50), start + 4)

        def price(rows, wanted=wanted, band=band):
            on = sum(band[0] - APART / 2 < row < band[1] + APART / 2 for row in rows)
            return sum((row - want) ** 2 for row, want in zip(rows, wanted, strict=True)) + 60**2 * on

        assert price(spread(wanted, (0, 59), [band])) == pytest.approx(min(map(price, rooms)))
    assert spread([30.0], (0, 59), labels=[(20, 59)]) == [12]
    with pytest.raises(ValueError, match="give 15 for each"):
        spread([1.0, 2.0], (0, APART - 1))
    assert spread([1.0, 2.0], (0, APART)) == [0, APART]


def test_bars():
    """Bars are as long as their values, the longest first, with the value at each; a mark says which is not sure."""
    root = parsed(
        bars("Memory", "MB", [Bar("SADD", 50, sure=False), Bar("blocked", 2.5, ours=True), Bar("x", 100), Bar("y", 0)])
    )
    drawn = of_class(root, "mark")
    lengths = [float(each.get("width", "")) for each in drawn]
    assert lengths[1:] == pytest.approx([lengths[0] / 2, lengths[0] / 40, 1], abs=0.1)
    assert [float(each.get("y", "")) for each in drawn] == sorted(float(each.get("y", "")) for each in drawn)
    assert [each.text for each in of_class(root, "end")] == ["x", "SADD", "blocked", "y"]
    assert [each.text for each in of_class(root, "strong")] == ["blocked", "2.5"]
    texts = [each.text for each in root.iter("text")]
    assert {"100", "50 ?", "2.5", "0"} < set(texts)
    assert texts[-1] == "? the fastest tries do not agree"
    assert "SADD 50 ?, blocked 2.5" in root[1].text
    assert max(at(each)[0] + width(each.text) for each in root.iter("text")) <= WIDTH
    assert "?" not in bars("Memory", "MB", [Bar("a", 0)])


NAMES = ("a & b", "<b>", '"quoted"', "it's", "]]>", "ü ∞ 🦀", "\x00\x1b\ud800\uffff", "n" * (NAME + 1))


@pytest.mark.parametrize("name", NAMES)
def test_names_are_escaped(name):
    """Names, titles and units have any characters; those that no XML has are replaced, the end of long names is cut."""
    shown = "\N{REPLACEMENT CHARACTER}" * 4 if name.startswith("\x00") else name
    for made in (
        lines(name, Axis(name, name, log=True), Axis(name, name), [Series(name, [(1e5, 1.0), (1e8, 2.0)])]),
        bars(name, name, [Bar(name, 2.0)]),
    ):
        made.encode()
        root = parsed(made)
        assert root[0].text == shown
        assert shown in root[1].text
        assert (f"{'n' * (NAME - 1)}…" if name.startswith("n") else shown) in {each.text for each in root.iter("text")}


def test_words():
    """The description has the name of each line, with its first and its last value."""
    root = parsed(lines("Time", ITEMS, TIME, [Series("a", [(1e8, 4.5), (1e5, 3.25)]), Series("b", [(1e6, 2)])]))
    assert root.get("role") == "img"
    assert [(each.tag, each.text) for each in root[:2]] == [
        ("title", "Time"),
        ("desc", "time of an item, µs, by items. a: 3.25 at 100,000, 4.5 at 100 million. b: 2 at 1 million."),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0125, "0.0125"),
        (1e-7, "0.0000001"),
        (2.999, "3"),
        (-40, "-40"),
        (228_731, "229,000"),
        (999_999, "1 million"),
        (1_234_567, "1.23 million"),
        (2e9, "2 billion"),
    ],
)
def test_numbers(value, text):
    """Numbers have three digits, and words for the large ones."""
    assert number(value) == text


POINT = Series("b", [(1e5, 1.0)])


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "no series for 'Time': give at least one, or draw no chart"),
        ([POINT, Series("a", [])], "'a' has no points: give at least one, or leave the series out"),
        ([Series("a", [(1e5, math.nan)])], "'time of an item' has nan: leave points out"),
        ([Series("a", [(math.inf, 1)])], "'items' has inf: leave points out"),
        ([POINT, Series("a", [(0, 1)])], "'items' has 0.0: leave it out, or take a linear axis"),
        ([Series("a", [(1, 1)] * (POINTS + 1))], "'Time' has 1,001 points: give at most 1,000"),
    ],
)
def test_no_lines(series, message):
    """Series that cannot be drawn are refused, with what to do."""
    with pytest.raises(ValueError, match=message):
        lines("Time", ITEMS, TIME, series)


def test_no_bars():
    """Bars that cannot be drawn are refused, with what to do."""
    with pytest.raises(ValueError, match="no bars for 'Time': give at least one, or draw no chart"):
        bars("Time", "µs", [])
    for value in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"'a' has {value}: a bar has a value of 0 or more; leave others out"):
            bars("Time", "µs", [Bar("b", 1), Bar("a", value)])


def test_files_are_small_and_load_nothing():
    """The largest chart has at most 30 kB, one of ten points a peer at most half; neither names anything outside."""
    dice = random.Random(1)
    most = [
        Series(f"{place:{NAME}}&", [(dice.uniform(1e5, 1e8), dice.uniform(0, 9)) for _ in range(POINTS // 15)])
        for place in range(15)
    ]
    usual = lines("Time", ITEMS, LOG_TIME, all_peers(dice))
    largest = lines("Time", ITEMS, LOG_TIME, most)
    assert len(usual.encode()) <= 15_000
    assert len(largest.encode()) <= 30_000
    for made in (usual, largest, bars("Time", "µs", [Bar("a", 1)])):
        assert re.findall(r"\w+://[^\"]*", made) == ["http://www.w3.org/2000/svg"]
        assert not re.search(r"url\((?!#)|@import|@font-face|href|<script|<image", made)
        assert max(map(len, made.splitlines())) < 1500


def test_equal_input_makes_equal_text():
    """A chart depends on its values only, not on the order of points or bars."""
    given = all_peers(random.Random(1))
    turned = [Series(each.name, each.points[::-1], each.ours) for each in given]
    assert lines("Time", ITEMS, TIME, given) == lines("Time", ITEMS, TIME, turned)
    row = [Bar(name, place // 2) for place, name in enumerate(PEERS)]
    assert bars("Time", "µs", row) == bars("Time", "µs", row[::-1])


def test_a_peer_looks_the_same_everywhere():
    """A peer has its colour and its mark in every chart and in whatever company; no two of a chart look the same."""
    names = [*PEERS, "blocked, rolling", "blocked, ring of 7", "BF.MADD, 8 clients", "new", "newer"]
    looks = looks_of(dict.fromkeys(names, False))
    assert len(set(looks.values())) == len(names)
    for name in PEERS:
        assert looks_of({"other": True, name: False})[name] == looks[name]
        for chart in (lines("", ITEMS, TIME, [Series(name, [(1, 1)])]), bars("", "", [Bar(name, 1)])):
            assert of_class(parsed(chart), looks[name].kind)
    assert (looks["blocked, rolling"].kind, looks["BF.MADD, 8 clients"].kind) == ("ours", "bloom")
    assert (looks["new"].kind, looks_of({"new": True})["new"].kind) == ("other", "ours")
    for name in ALL:
        assert looks_of({name: False})[name].kind != "other", f"{name} needs a line in bench/plots/looks.py"
    many = looks_of({f"new {place}": True for place in range(2 * len(SHAPES))})
    assert {look.place for look in many.values()} == set(range(len(SHAPES)))


def test_ours_stands_out():
    """Our lines are thick and on top, our names are bold; those of others are not."""
    root = parsed(lines("Time", ITEMS, TIME, all_peers(random.Random(1))))
    drawn = [(group[0].text, "thick" in group[1].get("class", "").split()) for group in root.iter("g")]
    assert {name for name, thick in drawn if thick} == OURS
    assert [thick for _, thick in drawn] == sorted(thick for _, thick in drawn)
    assert {each.text for each in of_class(root, "strong")} == OURS


def test_dark_has_all_of_light():
    """Every colour of the style sheet has another one for dark pages."""
    light, dark = style().split("@media (prefers-color-scheme: dark) {\n")
    rules = [dict(re.findall(r"^(\S+) \{ .*?(#\w{6})", part, re.MULTILINE)) for part in (light, dark)]
    assert rules[0].keys() == rules[1].keys() > {f".{kind}" for kind in COLOURS}
    assert all(rules[0][each] != rules[1][each] for each in rules[0])
    assert light.count("#") == dark.count("#") == len(rules[0])


#: For each kind of sight the red, green and blue that is seen: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes,
#: "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.
SIGHTS = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
)

#: From linear red, green and blue to cones, and from their cube roots to lightness and colour: B. Ottosson, OKLab.
CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
LAB = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def times(matrix, vector) -> list[float]:
    """The product of a matrix and a vector."""
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def linear(colour: str) -> list[float]:
    """Red, green and blue of a colour such as #1f94ec, as amounts of light from 0 to 1."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG: 1 to 21."""
    darker, lighter = sorted(times([(0.2126, 0.7152, 0.0722)], linear(each))[0] + 0.05 for each in (one, other))
    return lighter / darker


def seen(colour: str, sight) -> list[float]:
    """A colour in OKLab, as a kind of sight has it."""
    light = [min(1, max(0, part)) for part in times(sight, linear(colour))]
    return times(LAB, [cone ** (1 / 3) for cone in times(CONES, light)])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_told_apart(scheme):
    """Colours stand out from their ground (WCAG 1.4.11) and from one another, for colour-blind readers too."""
    colours = {kind: both[scheme] for kind, both in COLOURS.items()}
    assert min(contrast(each, GROUND[scheme]) for each in colours.values()) >= 3
    assert contrast(colours["ours"], GROUND[scheme]) >= 4.5
    for sight in SIGHTS:
        for one, other in itertools.combinations(colours.values(), 2):
            assert math.dist(seen(one, sight), seen(other, sight)) >= 0.12
