"""Rules: what they leave out of which URLs, and which are refused."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from urifilter_redis.bloom.normalize import explain, normalizer
from urifilter_redis.bloom.rules import LONGEST, canonical_rules, sha256_of


def spelled(rules, url, normalize="sorted"):
    """The spelling of a URL under rules."""
    return normalizer(normalize, canonical_rules(rules, normalize))(url)


@pytest.mark.parametrize(
    ("rule", "url", "expected"),
    [
        ({"drop": ["sid"]}, "http://a.example/?sid=1&b&Sid=2", "http://a.example/?Sid=2&b"),
        ({"drop": ["sid"]}, "http://a.example/?utm_source=x", "http://a.example/"),
        ({"drop": ["s*"]}, "http://a.example/?sid=1&s&t", "http://a.example/?t"),
        ({"drop": ["f[x]"]}, "http://a.example/?f%5bx%5D=1&f[x]=2&f[y]=3", "http://a.example/?f[y]=3"),
        ({"drop": ["ü"]}, "http://a.example/?%C3%BC=1&ü=2&u", "http://a.example/?u"),
        ({"drop": ["a+b"]}, "http://a.example/?a+b&a%2Bb&a%20b", "http://a.example/?a%20b"),
        ({"keep": ["id", "p*"]}, "http://a.example/?p2&x&id=1&p1", "http://a.example/?id=1&p1&p2"),
        ({"keep": ["utm_id"]}, "http://a.example/?utm_id=7&utm_source=x", "http://a.example/?utm_id=7"),
        ({"keep": ["*"]}, "http://a.example/?utm_source=x&a", "http://a.example/?a&utm_source=x"),
        ({"keep": []}, "http://a.example/?a", "http://a.example/"),
        ({"drop_all": True}, "http://a.example/?a=1&b", "http://a.example/"),
        ({"drop_all": True}, "http://a.example/?", "http://a.example/"),
        ({"drop_all": False}, "http://a.example/?a", "http://a.example/?a"),
        ({"lower_path": True}, "http://a.example/A/%C3%84?B", "http://a.example/a/%C3%84?B"),
        ({"lower_path": True}, "http://a.example/%2FA%zZ", "http://a.example/%2Fa%zz"),
        ({"cut_prefix": "/amp"}, "http://a.example/amp/b", "http://a.example/b"),
        ({"cut_prefix": "/amp"}, "http://a.example/amp", "http://a.example/"),
        ({"cut_prefix": "/amp"}, "http://a.example/amp/amp/amp/", "http://a.example/"),
        ({"cut_prefix": "/amp"}, "http://a.example/ampere/b", "http://a.example/ampere/b"),
        ({"cut_prefix": "/amp"}, "http://a.example/b/amp", "http://a.example/b/amp"),
        ({"cut_prefix": "/amp"}, "http://a.example/amp//b", "http://a.example//b"),
        ({"cut_prefix": "/%61mp"}, "http://a.example/%61mp/b", "http://a.example/b"),
        ({"cut_prefix": "/ä"}, "http://a.example/%c3%a4/b", "http://a.example/b"),
        ({"cut_prefix": "/AMP", "lower_path": True}, "http://a.example/Amp/B", "http://a.example/b"),
        ({"cut_suffix": ";jsessionid=*"}, "http://a.example/b;jsessionid=1;x", "http://a.example/b"),
        ({"cut_suffix": ";jsessionid=*"}, "http://a.example/b;jsessionid=1/c", "http://a.example/b;jsessionid=1/c"),
        ({"cut_suffix": ";s=*"}, "http://a.example/100%;s=1", "http://a.example/100%"),
        ({"cut_suffix": ";s=*"}, "http://a.example/;s=1", "http://a.example/"),
        ({"cut_suffix": ";s=*"}, "http://a.example/..;s=1", "http://a.example/..;s=1"),
        ({"cut_suffix": "%2F*"}, "http://a.example/%2fb", "http://a.example/"),
        ({"cut_suffix": "%2F*"}, "http://a.example/a%2fb", "http://a.example/a"),
        ({"cut_suffix": ".html"}, "http://a.example/b.html.html", "http://a.example/b"),
        ({"cut_suffix": ".html"}, "http://a.example/b.html/", "http://a.example/b.html/"),
        ({"cut_suffix": "F"}, "http://a.example/b%2F", "http://a.example/b%2F"),
        ({"cut_suffix": ".html", "cut_prefix": "/amp"}, "http://a.example/amp.html", "http://a.example/"),
        ({"lower_path": True, "drop_all": True}, "ftp://a.example/A?b", "ftp://a.example/A?b"),
        ({"host": "a.example"}, "http://a.example/?gclid=1&b", "http://a.example/?b"),
    ],
)
def test_a_rule(rule, url, expected):
    """What each field leaves out."""
    assert spelled([rule], url) == expected


@pytest.mark.parametrize(
    ("rule", "url", "expected"),
    [
        ({"cut_suffix": ".x"}, "http://www.a.example/b.x/", "https://a.example/b"),
        ({"cut_suffix": ";s=*"}, "http://a.example/b/index.html;s=1", "https://a.example/b"),
        ({"cut_suffix": ";s=*"}, "http://a.example/b/;s=1/index.php;s=2/", "https://a.example/b"),
        ({"cut_suffix": ".html"}, "http://a.example/b/index.html/", "https://a.example/b/index"),
        ({"cut_prefix": "/amp"}, "http://a.example/amp/index.html", "https://a.example/"),
        ({"cut_prefix": "/index.php"}, "http://a.example/index.php/", "https://a.example/"),
        ({"keep": []}, "http://a.example/b?", "https://a.example/b"),
    ],
)
def test_a_rule_with_loose(rule, url, expected):
    """Index pages, slashes at the end and what a rule cuts go until none is left."""
    assert spelled([rule], url, "loose") == expected


RULES = [
    {"drop": ["all"]},
    {"domain": "example", "drop": ["top"]},
    {"domain": "b.example", "drop": ["domain"]},
    {"host": "www.b.example", "drop": ["host"]},
    {"domain": "ü.example.", "drop": ["idna"]},
    {"host": "192.0.2.1", "drop": ["ip"]},
    {"host": "[::1]", "drop": ["six"]},
]


@pytest.mark.parametrize(
    ("host", "dropped"),
    [
        ("other.org", "all"), ("a.example", "top"), ("b.example", "domain"), ("a.b.example", "domain"),
        ("ab.example", "top"), ("www.b.example", "host"), ("WWW.B.Example.:8080", "host"),
        ("a.www.b.example", "domain"), ("ü.example", "idna"), ("www.xn--tda.example", "idna"), ("192.0.2.1", "ip"),
        ("[::1]:80", "six"), ("user@b.example", "domain"), (".".join(["a" * 60] * 9) + ".b.example", "domain"),
    ],
)  # fmt: skip
def test_exactly_one_rule_applies(host, dropped):
    """That of the host, else of the longest domain, else the one for all; at label borders, whatever the port."""
    names = [each["drop"][0] for each in RULES]
    made = spelled(RULES, f"http://{host}/?{'&'.join(names)}")
    assert sorted(made.partition("?")[2].split("&")) == sorted(set(names) - {dropped})


def test_no_rule_for_all():
    """Hosts without a rule are normalised as without rules."""
    rules = [{"domain": "b.example", "drop_all": True}]
    assert spelled(rules, "http://a.example/?b&a&gclid=1") == "http://a.example/?a&b"
    assert spelled(rules, "http://b.example/?a") == "http://b.example/"


def test_under_loose_a_rule_for_www_is_one_for_the_domain():
    """Hosts of rules are written as the normalisation writes them."""
    assert (
        spelled([{"host": "www.a.example", "drop_all": True}], "http://a.example/?a", "loose") == "https://a.example/"
    )
    both = [{"host": "a.example"}, {"host": "www.a.example."}]
    assert canonical_rules(both, "sorted") == '[{"host":"a.example"},{"host":"www.a.example"}]'
    with pytest.raises(ValueError, match="rule 2 is for host a.example, and so is rule 1"):
        canonical_rules(both, "loose")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"host": "a"}, "rules are a list"),
        (7, "rules are a list"),
        ("{", "rules are no JSON text: .*given as a Path"),
        ([7], "rule 1 is a table of fields and not 7"),
        ([{}, {"hosts": "a"}], "rule 2: 'hosts' is no field: host, domain, drop,"),
        ([{}, {}], "rule 2 is for all hosts, and so is rule 1"),
        ([{"domain": "a."}, {"domain": "A"}], "rule 2 is for domain a, and so is rule 1"),
        ([{"host": "a", "domain": "b"}], "rule 1: it has host and domain"),
        ([{"drop": [], "keep": []}], "rule 1: it has drop and keep"),
        ([{"drop": [], "drop_all": True}], "rule 1: it has drop and drop_all"),
        ([{"keep": [], "drop_all": True}], "rule 1: it has keep and drop_all"),
        ([{"drop": "sid"}], "rule 1, drop: it is a list of names and not 'sid'"),
        ([{"drop": False}], "rule 1, drop: it is a list of names and not False"),
        ([{"drop": ["a", 7]}], "rule 1, drop, name 2: 7 is no text"),
        ([{"drop": [""]}], "rule 1, drop, name 1: '' is no text"),
        ([{"drop": ["\ud800"]}], "rule 1, drop, name 1: .* is no text"),
        ([{"keep": ["a*b"]}], r"rule 1, keep, name 1: 'a\*b' has a \* that is not at its end"),
        ([{"keep": ["a=b"]}], "rule 1, keep, name 1: 'a=b' is no name"),
        ([{"drop_all": 1}], "rule 1, drop_all: it is true or false and not 1"),
        ([{"lower_path": "yes"}], "rule 1, lower_path: it is true or false"),
        ([{"host": "http://a"}], "rule 1, host: 'http://a' is no host"),
        ([{"host": "a:80"}], "rule 1, host: 'a:80' is no host"),
        ([{"host": "a b"}], "rule 1, host"),
        ([{"host": "a/b"}], "rule 1, host"),
        ([{"host": "u@b"}], "rule 1, host"),
        ([{"host": "[::1"}], "rule 1, host"),
        ([{"host": "*.a"}], "rule 1, host"),
        ([{"domain": ".a"}], "rule 1, domain"),
        ([{"domain": "."}], "rule 1, domain"),
        ([{"domain": 7}], "rule 1, domain: 7 is no text"),
        ([{"host": ".".join(["a" * 60] * 5)}], "rule 1, host: a host has 253 characters at most, and this one has 304"),
        ([{"cut_prefix": "amp"}], "rule 1, cut_prefix: 'amp' is no beginning"),
        ([{"cut_prefix": "/"}], "rule 1, cut_prefix"),
        ([{"cut_prefix": "/."}], "rule 1, cut_prefix"),
        ([{"cut_prefix": "/a/"}], "rule 1, cut_prefix"),
        ([{"cut_prefix": "/a/../b"}], "rule 1, cut_prefix"),
        ([{"cut_prefix": "/a?b"}], "rule 1, cut_prefix"),
        ([{"cut_suffix": "*"}], "rule 1, cut_suffix"),
        ([{"cut_suffix": "a*b"}], "rule 1, cut_suffix"),
        ([{"cut_suffix": "a/b"}], "rule 1, cut_suffix"),
        ([{"cut_suffix": "a#b"}], "rule 1, cut_suffix"),
        ([{"drop": [f"{n:020}" for n in range(400)]}], f"rules take 9,212 bytes, and {LONGEST:,} at most"),
    ],
)  # fmt: skip
def test_wrong_rules(rules, message):
    """Each is refused with its place."""
    with pytest.raises(ValueError, match=message):
        canonical_rules(rules, "sorted")


@pytest.mark.parametrize("normalize", ["none", "whatwg"])
def test_rules_need_a_normalisation(normalize):
    """Rules are for URLs whose parts are in their normal form."""
    with pytest.raises(ValueError, match=f"rules are for normalize sorted or loose, and not {normalize}"):
        canonical_rules([{"drop_all": True}], normalize)
    assert canonical_rules([], normalize) == "[]"


def test_a_file(tmp_path):
    """A TOML file has a table [[rule]] for each rule."""
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\ndrop = ["sid"]\n\n[[rule]]\ndomain = "ü.example"\nkeep = ["id"]\n')
    made = canonical_rules(path, "sorted")
    assert made == '[{"domain":"xn--tda.example","keep":["id"]},{"drop":["sid"]}]'
    assert canonical_rules(made, "sorted") == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[[rule]\n", "rules.toml: .*line 1"),
        (b"\xff", "rules.toml: .*utf-8"),
        (b"drop = []\n", "rules.toml: 'drop' is not known: each rule is a table"),
        (b"rule = 7\n", "rules are a list and not 7"),
        (b'[[rule]]\n[[rule]]\ndrop = "a"\n', "rule 2, drop: it is a list"),
        (None, "rules.toml: No such file"),
    ],
)
def test_a_wrong_file(tmp_path, text, message):
    """The message has the file, or the rule, and what is wrong there."""
    path = tmp_path / "rules.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        canonical_rules(Path(path), "sorted")


def test_equal_rules_are_equal_texts():
    """Whatever their order, the order of their names, and the spelling of hosts."""
    one = [{"drop": ["b", "a", "b"]}, {"domain": "A.example", "lower_path": True, "drop_all": False}]
    other = [{"lower_path": True, "domain": "a.example."}, {"drop": ("a", "b"), "keep": None}]
    assert canonical_rules(one, "sorted") == canonical_rules(other, "sorted")
    assert sha256_of(None) == ""
    assert re.fullmatch("[0-9a-f]{64}", sha256_of(canonical_rules(one, "sorted")))


names = st.text("abs*ü[", max_size=3).filter(lambda text: text and "*" not in text[:-1])
rule = st.fixed_dictionaries(
    {},
    optional={
        "lower_path": st.booleans(),
        "cut_prefix": st.sampled_from(["/a", "/A/b", "/index.php", "/%41", "/a;s", "/b.h"]),
        "cut_suffix": st.sampled_from([";s=*", ".h", "a", "F", "b*", ";", ".*", "2", "%2F*", "Ab", ".php"]),
    },
)
query = st.one_of(
    st.just({}),
    st.lists(names, max_size=3).map(lambda found: {"drop": found}),
    st.lists(names, max_size=3).map(lambda found: {"keep": found}),
    st.just({"drop_all": True}),
)
places = st.sampled_from([{}, {"host": "a.example"}, {"domain": "a.example"}, {"domain": "example"}])
rulesets = st.lists(
    st.tuples(places, rule, query).map(lambda parts: parts[0] | parts[1] | parts[2]),
    unique_by=lambda each: (each.get("host"), each.get("domain")),
)
urls = st.builds(
    "http://{}{}{}".format,
    st.sampled_from(["a.example", "www.a.example.", "b.a.example", "example", "other.org"]),
    st.lists(st.sampled_from(["/", "a", "A", "b", ".h", ";s=", "index.php", ".", "%2F", "%", "2", "F", "b.h"])).map(
        lambda parts: "/" + "".join(parts)
    ),
    st.lists(st.sampled_from(["a", "ab", "s=1", "utm_id=1", "%C3%BC", "%5B=", "b=2", ""])).map(
        lambda parts: "?" + "&".join(parts) if parts else ""
    ),
)


@pytest.mark.parametrize("normalize", ["sorted", "loose"])
@given(rulesets, urls, st.randoms())
@example([{"cut_suffix": ".h", "cut_prefix": "/a"}], "http://a.example/a.h/", None)
def test_twice_is_once_and_order_is_nothing(normalize, rules, url, random):
    """What is normalised under rules stays as it is, and rules in another order are the same."""
    change = normalizer(normalize, canonical_rules(rules, normalize))
    once = change(url)
    assert change(once) == once
    shuffled = list(rules)
    if random is not None:
        random.shuffle(shuffled)
    assert canonical_rules(shuffled, normalize) == canonical_rules(rules, normalize)
    steps = explain(url, normalize, canonical_rules(rules, normalize))
    assert (steps[-1][1] if steps else url) == once


@given(rulesets, urls)
def test_loose_merges_more_than_sorted(rules, url):
    """Items that are one under ``sorted`` are one under ``loose`` with the same rules, but for those of www. hosts."""
    of_all = [each for each in rules if "host" not in each and "domain" not in each]
    loose, by_order = (normalizer(name, canonical_rules(of_all, name)) for name in ("loose", "sorted"))
    assert loose(by_order(url)) == loose(url)


@pytest.mark.sampled
@pytest.mark.parametrize("suffix", ["a", "aa", ";s=*", "%2F*"])
@pytest.mark.parametrize("part", ["a", "/a", "/index.php;s=1", "%2F", "/..;s="])
def test_a_million_parts(part, suffix):
    """A rule takes time that grows with the length and not with its square."""
    rules = [{"cut_prefix": "/a", "cut_suffix": suffix, "drop": ["a*"], "lower_path": True}]
    began = time.monotonic()
    assert len(spelled(rules, "http://a.example" + "/" + part * 100_000, "loose")) < 2_000_000
    assert time.monotonic() - began < 20


def test_a_million_dots():
    """The look-up of a host takes time that grows with its length."""
    rules = [{"domain": "example", "drop_all": True}]
    assert spelled(rules, f"http://{'a.' * 300_000}example/?a").endswith("example/")


def test_explain():
    """Each step that changes an item is told, and none for what is no URL."""
    rules = json.dumps([{"domain": "a.example", "drop": ["sid"], "lower_path": True}])
    assert explain("HTTP://www.a.example/%42?sid=1&b#x", "loose", rules) == [
        ("parse", "http://www.a.example/%42?sid=1&b"),
        ("escapes", "http://www.a.example/B?sid=1&b"),
        ("host", "https://a.example/B?sid=1&b"),
        ("path", "https://a.example/b?sid=1&b"),
        ("parameters", "https://a.example/b?b"),
    ]
    assert explain("no URL", "loose", rules) == explain("http://A", "none") == []
