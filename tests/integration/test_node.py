"""The example client in JavaScript and this library work on one filter, and agree about every item."""

from __future__ import annotations

import contextlib
import json
import random

import pytest
from support import cli, node
from support.node import Node
from support.proxy import Fault, Proxy, at_random, first

from urifilter_redis import UriFilter
from urifilter_redis.bloom.normalize import normalizer
from urifilter_redis.bloom.rules import canonical_rules

pytestmark = pytest.mark.slow

SETTINGS = {"capacity": 20_000, "error_rate": 1e-8}
TIMED = {"slices": 4, "period": "2000w"}

#: Items of every kind; the spelling of some differs from that of others in what a normalisation takes away.
ITEMS = [
    "", "a", "ü€😀", "\ud800x", b"", b"\xff\x00", b"bytes", [None], True, False, 0, -7, 1.5, 1e-7, 2**40, [], {},
    ["é", '\x7f\u2028/"\\\n'], {"b": 1, "a": [2, {"d": None, "c": "x"}]}, {"\U0001f600": 3, "\uffff": 4},
    "http://www.example.com/a/", "https://example.com/a", "WWW.Example.com/index.html?b=1&a=2&utm_id=1#x",
    "http://ü.example:80/ä/../b?", b"HTTP://Example.com", "example.com:٣", "a.b\ufeffc.d", "mailto:a@b.c#d", "http://[::1",
    *(f"https://example.com/{n}" for n in range(400)),
]  # fmt: skip

MORE = [f"http://example.org/{n}?b&a" for n in range(700)]

RETENTIONS = {
    "forever": {},
    "growing": {"retention": "growing"},
    "ring": {"retention": "ring", **TIMED},
    "ring, write=all": {"retention": "ring", "write": "all", **TIMED},
    "ring, last-seen": {"retention": "ring", "expire_after": "last-seen", **TIMED},
    "rolling": {"retention": "rolling", **TIMED},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example with its packages, and the exported scripts."""
    copy = node.installed(tmp_path_factory.mktemp("node"))
    cli.run("lua", "export", copy / "scripts")
    return copy


def agree(news, js, items) -> None:
    """Both give each item the same age."""
    assert js("contains", items) == news.ages(items)


def test_check(folder, any_server):
    """The program of the example finds all known answers right, and gets a lost reply again."""
    with UriFilter.create("news", redis=any_server.url, shards=3, **SETTINGS):
        said = node.run(folder, "check.mjs", "scripts", any_server.url, "news")
    assert said == "the known answers: right\nthe filter news: right; a lost reply came again\n"


@pytest.mark.parametrize("hash_", ["mmh3", "md5", "blake2b"])
@pytest.mark.parametrize("normalize", ["none", "whatwg", "sorted", "loose"])
def test_one_digest(folder, any_server, hash_, normalize):
    """Each kind of item is the same item to both, under each hash and normalisation."""
    settings = {"hash": hash_, "normalize": normalize, "shards": 5}
    with (
        UriFilter.create("news", redis=any_server.url, **SETTINGS, **settings) as news,
        Node(folder, any_server.url) as js,
    ):
        new = js("insert", ITEMS).count(0)
        assert all(news.contains_many(ITEMS))
        assert news.unique(MORE) == MORE
        assert all(js("contains", MORE))
        assert news.info().inserted == new + len(MORE)
        assert news.unique(ITEMS) == []
        assert js("contains", ["another"]) == [0]


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("layout", ["blocked", "classic"])
def test_retentions(folder, any_server, layout, retention):
    """Both see the same ages, also after a turn that the other has not heard of (STALE)."""
    settings = {"layout": layout, "shards": 3, **RETENTIONS[retention]}
    with (
        UriFilter.create("news", redis=any_server.url, **SETTINGS, **settings) as news,
        Node(folder, any_server.url) as js,
    ):
        for turn in range(3):
            some = [f"{turn}: {n}" for n in range(300)]
            assert js("insert", some[:200]) == [0] * 200
            assert news.unique(some) == some[200:]
            agree(news, js, [f"{each}: {n}" for each in range(turn + 1) for n in range(300)])
            if "period" in settings:
                news.rotate()
        found = news.ages(["0: 1", "2: 250"])
        assert js("insert", ["0: 1", "2: 250", "new"]) == [*found, 0]
        assert js("forget", ["2: 1", "never"]) == [1, 0]
        agree(news, js, ["2: 1", "2: 2"])


def test_segments(folder, any_server):
    """Both find an item in the same segment of a shard, also after a turn."""
    settings = SETTINGS | RETENTIONS["ring"] | {"capacity": 36_000_000, "shards": 2}
    with UriFilter.create("news", redis=any_server.url, **settings) as news, Node(folder, any_server.url) as js:
        assert news.config.today.segments > 2
        for turn in range(2):
            some = [f"{turn}: {n}" for n in range(300)]
            assert js("insert", some[:200]) == [0] * 200
            assert news.unique(some) == some[200:]
            agree(news, js, [f"{each}: {n}" for each in range(turn + 1) for n in range(300)])
            news.rotate()


def test_max_age(folder, any_server):
    """A ring may be asked about its newest slices only."""
    settings = SETTINGS | RETENTIONS["ring"]
    with UriFilter.create("news", redis=any_server.url, **settings) as news, Node(folder, any_server.url) as js:
        js("insert", ["a"])
        news.rotate()
        assert [js("contains", ["a"], max_age=j) for j in (0, 1, 2)] == [[2], [0], [2]]


def test_counting(folder, any_server):
    """An item that one removed is gone for the other."""
    settings = {"layout": "counting", "shards": 2}
    with (
        UriFilter.create("news", redis=any_server.url, **SETTINGS, **settings) as news,
        Node(folder, any_server.url) as js,
    ):
        assert js("insert", ["a", "b", "c"]) == [0, 0, 0]
        assert js("remove", ["a", "x"]) == [1, 0]
        assert news.remove(["b"]) == [True]
        agree(news, js, ["a", "b", "c"])
        assert js("contains", ["a", "b", "c"]) == [0, 0, 1]


def test_a_growing_filter_that_is_full(folder, any_server):
    """FULL changes nothing. Once another client has made the next slice, the same call is answered."""
    settings = {"capacity": 100, "error_rate": 1e-8, "retention": "growing"}
    with UriFilter.create("news", redis=any_server.url, **settings) as news, Node(folder, any_server.url) as js:
        some = [f"{n}" for n in range(80)]
        assert js("insert", some) == [0] * 80
        said = js.fails("insert", ["x", *some[:20], *map(str, range(1000, 1040))])
        assert (said["kind"], said["error"].split()[0]) == ("FilterError", "FULL")
        assert news.info().inserted == 80
        news.unique([f"other {n}" for n in range(60)])
        assert js("retry") == [0, *[2] * 20, *[0] * 40]
        agree(news, js, some)


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DELAY, Fault.DUPLICATE, Fault.HANG])
def test_one_fault(folder, any_server, fault):
    """A command that is lost, late or doubled, or whose reply is lost, is answered right at the first asking."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news, Proxy(any_server.port) as proxy:
        with Node(folder, proxy.url) as js:
            assert js("insert", ["a"]) == [0]  # loads the script
            proxy.plan = first(fault)
            assert js("insert", ["b", "a", "b"]) == [0, 1, 1]
            assert proxy.counts[fault] == 1
            assert js("insert", ["b", "c"]) == [1, 0]
            proxy.release()
        assert news.info().inserted == 3


def all_new(js, items) -> list[str]:
    """Return the new ones of the items that it was told to insert, and retry until it has all answers."""
    said = js.end()
    while "error" in said:
        assert said["kind"] == "AnswerLost"
        js.begin("retry")
        said = js.end()
    return [item for item, age in zip(items, said["answers"], strict=True) if age == 0]


def test_many_faults(folder, any_server):
    """Three processes of two languages insert the same items over bad lines; each item is new exactly once."""
    every, new = [f"https://example.com/{n}" for n in range(3000)], []
    with contextlib.ExitStack() as stack:
        news = stack.enter_context(UriFilter.create("news", redis=any_server.url, shards=3, **SETTINGS))
        proxy = stack.enter_context(Proxy(any_server.port, late_after=20))
        python = stack.enter_context(UriFilter.open("news", redis=proxy.url))
        both = [stack.enter_context(Node(folder, proxy.url)) for _ in range(2)]
        proxy.plan = at_random(7, 0.1)
        for at in range(0, len(every), 100):
            some = every[at : at + 100]
            for js in both:
                js.begin("insert", some)
            new += python.unique(some)
            for js in both:
                new += all_new(js, some)
        assert proxy.counts.total() - proxy.counts[Fault.PASS] > 10
        assert sorted(new) == sorted(every)
        assert news.info().inserted == len(every)


@pytest.mark.parametrize(
    ("behind", "cut", "certain"),
    [(200_000, False, True), (200_000, True, True), (500_000, False, True), (500_000, True, False)],
)
def test_a_call_after_its_deadline(folder, any_server, behind, cut, certain):
    """LATECALL: the call gets a new id if it certainly did nothing; otherwise its answer is lost."""
    settings = {"redis": any_server.url, **SETTINGS}
    with UriFilter.create("news", **settings), Proxy(any_server.port) as proxy, Node(folder, proxy.url) as js:
        assert js("insert", ["a"]) == [0]
        proxy.plan = first(*[Fault.CUT_BEFORE] * cut)
        js.begin("insert", ["b"], behind=behind)
        said = js.end()
        assert said["answers"] == ([0] if certain else [None])
        assert said.get("kind") == (None if certain else "AnswerLost")
        assert js("insert", ["c"]) == [0]


def test_a_server_that_is_away(folder, any_server):
    """After some seconds the answer counts as lost; asked again under the same ids, it is there."""
    settings = {"redis": any_server.url, **SETTINGS}
    with UriFilter.create("news", **settings), Proxy(any_server.port) as proxy, Node(folder, proxy.url) as js:
        assert js("insert", ["a"]) == [0]
        proxy.plan = lambda _: Fault.CUT_AFTER
        said = js.fails("insert", ["b"])
        assert (said["kind"], said["answers"]) == ("AnswerLost", [None])
        proxy.plan = first()
        assert js("retry") == [0]


def test_the_filter_is_gone(folder, any_server):
    """NOFILTER after a drop, MISMATCH once another filter has the name; the scripts may be gone as well."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news, Node(folder, any_server.url) as js:
        assert js("insert", ["a"]) == [0]
        any_server.ask("script_flush")
        assert js("insert", ["a"]) == [1]
        news.drop()
        said = js.fails("insert", ["a"])
        assert (said["kind"], said["error"].split()[0]) == ("FilterError", "NOFILTER")
        with UriFilter.create("news", redis=any_server.url, **SETTINGS):
            assert js.fails("insert", ["a"])["error"].split()[0] == "MISMATCH"
    with Node(folder, any_server.url, "nothing") as js:
        assert js.fails("insert", ["a"])["error"].split()[0] == "NOFILTER"


def test_a_shard_with_claims(folder, any_server):
    """The client has no scripts that look at leases: it is refused at the first call, and answers for other shards."""
    with UriFilter.create("news", redis=any_server.url, **SETTINGS) as news, Node(folder, any_server.url) as js:
        assert js("insert", ["a"]) == [0]
        assert news.claims().claim("b")
        for command in ("insert", "contains"):
            said = js.fails(command, ["a"])
            assert (said["kind"], said["error"].split()[0]) == ("FilterError", "STALE")
        assert news.insert_ages(["a", "b"]) == [1, -1]


def test_another_format(folder, any_server):
    """It is refused when the filter is opened."""
    UriFilter.create("news", redis=any_server.url, **SETTINGS).close()
    any_server.ask("hset", "urifilter:{news:0}:meta", "format", 2)
    with Node(folder, any_server.url) as js:
        said = js.fails("contains", ["a"])
    assert (said["kind"], said["error"].split()[0]) == ("FilterError", "FORMAT")


#: Reads rules and items as a line of JSON each, and writes the spellings.
_SPELL = """
import { readFileSync } from 'node:fs';
import { normalizer } from './items.mjs';

const known = JSON.parse(readFileSync('scripts/vectors.json'));
const spelled = JSON.parse(readFileSync('cases.json')).map(
  ([normalize, rules, items]) => items.map(normalizer(normalize, known, rules)),
);
console.log(JSON.stringify(spelled));
"""


def test_one_spelling(folder):
    """Both spell drawn URLs alike under drawn rules: neither was made from the other."""
    draw = random.Random(5)
    cases = [drawn_case(draw) for _ in range(2000)]
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "spell.mjs").write_text(_SPELL)
    theirs = json.loads(node.run(folder, "spell.mjs"))
    ours = [[*map(normalizer(name, rules), items)] for name, rules, items in cases]
    assert theirs == ours
    assert len({spelling for each in ours for spelling in each}) > 3000


def drawn_case(draw: random.Random) -> tuple[str, str, list[str]]:
    """Draw a normalisation, rules and URLs of the same few parts, so that the rules have something to do."""
    name, rules = draw.choice(["sorted", "loose"]), []
    for place in draw.sample([{}, {"host": "a.b"}, {"domain": "b"}, {"domain": "ü.b"}], draw.randint(0, 4)):
        about = draw.choice([{}, {"drop": some(draw, NAMES)}, {"keep": some(draw, NAMES)}, {"drop_all": True}])
        if draw.random() < 0.4:
            about |= {"lower_path": True}
        if draw.random() < 0.5:
            about |= {"cut_prefix": draw.choice(["/a", "/A/b", "/index.php", "/ä", "/a;s"])}
        if draw.random() < 0.6:
            about |= {"cut_suffix": draw.choice([";s=*", ".html", "a", "F", "b*", ".*", "%2F*", "Ab", "2"])}
        rules.append(place | about)
    return name, canonical_rules(rules, name), [drawn_url(draw) for _ in range(10)]


NAMES = ["a", "b*", "s[x]", "ü", "a+b", "utm_id", "sid", "*"]
PARTS = ["/", "a", "A", "b", ".html", ";s=", "index.php", ".", "..", "%2F", "%", "2", "F", "e", "%2e", "ä", "%37", " "]
PAIRS = [
    "a",
    "a=1",
    "%61=2",
    "b1=x",
    "s[x]=1",
    "s%5bx%5D",
    "%C3%BC",
    "ü=",
    "a+b",
    "a%20b",
    "utm_id=1",
    "sid",
    "",
    "=",
    "%%37E",
]


def some(draw: random.Random, of: list[str]) -> list[str]:
    return draw.choices(of, k=draw.randint(0, 3))


def drawn_url(draw: random.Random) -> str:
    host = draw.choice(["a.b", "www.a.b", "A.b.", "x.ü.b:80", "b", "c.d", "[::1]", "www.c.d.."])
    query = draw.choice(["", "?", "??"]) + "&".join(draw.choices(PAIRS, k=draw.randint(0, 4)))
    path = "/" + "".join(draw.choices(PARTS, k=draw.randint(0, 8)))
    return f"{draw.choice(['http', 'https', 'http', 'ftp', 'x'])}://{host}{path}{query}"
