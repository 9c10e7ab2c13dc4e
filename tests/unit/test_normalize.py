"""Which spellings are one item."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from urifilter_redis.bloom.normalize import normalizer
from urifilter_redis.bloom.url_parts import INDEX_PAGES, plain_escapes

whatwg, sorted_, loose = normalizer("whatwg"), normalizer("sorted"), normalizer("loose")


def test_one_minor_release_of_the_parser_is_allowed():
    """The items of a filter do not depend on what a process has installed: releases of the parser differ."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (requirement,) = (each for each in project["dependencies"] if each.startswith("can_ada"))
    found = re.fullmatch(r"can_ada>=(\d+)\.(\d+),<(\d+)\.(\d+)", requirement)
    major, minor, end_major, end_minor = map(int, found.groups())
    assert (end_major, end_minor) == (major, minor + 1)
    assert metadata.version("can_ada").startswith(f"{major}.{minor}.")


def test_none_does_nothing():
    """``none`` is no function at all."""
    assert normalizer("none") is None


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("HTTPS://WWW.Example.COM:443/a/../b#part", "https://www.example.com/b"),
        ("http://example.com", "http://example.com/"),
        ("http://example.com/?b=1&a=2", "http://example.com/?b=1&a=2"),
        ("http://ü.example/ä", "http://xn--tda.example/%C3%A4"),
        ("  http://example.com/a b ", "http://example.com/a%20b"),
        ("www.example.com", "https://www.example.com/"),
        ("Example.com:8080/path?q#f", "https://example.com:8080/path?q"),
        ("example.com:443", "https://example.com/"),
        ("example.com?q", "https://example.com/?q"),
        ("1.2.3.4:80", "https://1.2.3.4:80/"),
        (" \texam\nple.com\x00", "https://example.com/"),
        ("com.example.app://open", "com.example.app://open"),
        ("example.com:80 #part", "https://example.com:80/"),
        ("mailto:a@example.com#x", "mailto:a@example.com"),
        ("javascript:alert(1)#x", "javascript:alert(1)"),
        ("http://[::1", "http://[::1"),
        ("hello", "hello"),
        ("", ""),
        ("//example.com/a", "//example.com/a"),
        ("localhost/a", "localhost/a"),
        ("a sentence. with dots", "a sentence. with dots"),
        ("\ud800", "\ud800"),
        ("http://example.com/\ud800", "http://example.com/\ud800"),
    ],
)
def test_whatwg(item, expected):
    """As browsers do, without the fragment; what is no URL stays."""
    assert whatwg(item) == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("http://example.com/?b=1&a=2&b=0", "http://example.com/?a=2&b=1&b=0"),
        ("http://example.com/?utm_source=x&id=7&fbclid=y", "http://example.com/?id=7"),
        ("http://example.com/?utm_source=x#part", "http://example.com/"),
        ("http://example.com/?a&&=", "http://example.com/?=&a"),
        ("example.com?gclid=1&z&y", "https://example.com/?y&z"),
        ("http://example.com/??b&?a", "http://example.com/??a&?b"),
        ("http://example.com/?utm_sources=keep", "http://example.com/?utm_sources=keep"),
        ("http://example.com/%7Euser/%61%2fb%3a", "http://example.com/~user/a%2Fb%3A"),
        ("http://example.com/%%37E", "http://example.com/~"),
        ("http://example.com/%2%65%2%65/a", "http://example.com/a"),
        ("http://example.com/a/%2e%2E/b", "http://example.com/b"),
        ("http://example.com/%3%3%3%37", "http://example.com/7"),
        ("http://example.com/100%", "http://example.com/100%"),
        ("http://example.com/%zz%C3%a4", "http://example.com/%zz%C3%A4"),
        ("http://example.com/?%61=2&a=1&%62", "http://example.com/?a=2&a=1&b"),
        ("http://example.com/?b&%5B=1&%5b=2&Z", "http://example.com/?Z&%5B=1&%5B=2&b"),
        ("http://example.com/?%75tm_source=x&%67clid", "http://example.com/"),
        ("http://example.com/?a=1;b=2", "http://example.com/?a=1;b=2"),
        ("http://example.com/?q=a+b&p=a%20b", "http://example.com/?p=a%20b&q=a+b"),
        ("http://example.com/?é=1&z", "http://example.com/?z&%C3%A9=1"),
        ("http://example.com./a", "http://example.com/a"),
        ("http://example.com.:8080/", "http://example.com:8080/"),
        ("ftp://example.com./%7e", "ftp://example.com./~"),
        ("mailto:%61@example.com", "mailto:a@example.com"),
        ("example.org:%38%30", "https://example.org:80/"),
    ],
)
def test_sorted(item, expected):
    """Parameters sorted by name, those of one name in their order; tracking ones dropped."""
    assert sorted_(item) == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("http://example.com", "https://example.com/"),
        ("https://www.example.com/", "https://example.com/"),
        ("WWW.Example.com/", "https://example.com/"),
        ("http://www.www.example.com/", "https://example.com/"),
        ("http://www.ü.example/", "https://xn--tda.example/"),
        ("http://www.example.com.:8080/", "https://example.com:8080/"),
        ("http://www.co.uk/", "https://co.uk/"),
        ("http://www.com/", "https://www.com/"),
        ("http://www.www.com/", "https://www.com/"),
        ("http://www./", "https://www/"),
        ("http://example.com../", "https://example.com../"),
        ("http://./", "https://./"),
        ("http://www..com/", "https://www..com/"),
        ("http://www2.example.com/", "https://www2.example.com/"),
        ("http://wwwexample.com/", "https://wwwexample.com/"),
        ("http://a.www.example.com/", "https://a.www.example.com/"),
        ("http://192.0.2.1/a/", "https://192.0.2.1/a"),
        ("http://[::1]:80/", "https://[::1]/"),
        ("http://www.1.2.3.4/a/", "http://www.1.2.3.4/a/"),
        ("http://user:secret@www.example.com/", "https://user:secret@example.com/"),
        ("http://example.com:443/", "https://example.com/"),
        ("https://example.com:80/", "https://example.com:80/"),
        ("http://example.com:8080/a/", "https://example.com:8080/a"),
        ("http://example.com/a/", "https://example.com/a"),
        ("http://example.com/A/", "https://example.com/A"),
        ("http://example.com//", "https://example.com/"),
        ("http://example.com/a//b///", "https://example.com/a//b"),
        ("http://example.com//a/", "https://example.com//a"),
        ("http://example.com/a/index.html", "https://example.com/a"),
        ("http://example.com/a//Index.PHP", "https://example.com/a"),
        ("http://example.com/Default.aspx", "https://example.com/"),
        ("http://example.com/index.php/index.html/", "https://example.com/"),
        ("http://example.com/index.php/a", "https://example.com/index.php/a"),
        ("http://example.com/index.html/a/", "https://example.com/index.html/a"),
        ("http://example.com/index", "https://example.com/index"),
        ("http://example.com/my-index.html", "https://example.com/my-index.html"),
        ("http://example.com/index%2Ehtml", "https://example.com/"),
        ("http://example.com/index.jsp;id=1", "https://example.com/index.jsp;id=1"),
        ("http://example.com/index.php?b=1&a=2&utm_id=3#top", "https://example.com/?a=2&b=1"),
        ("http://example.com/a/?", "https://example.com/a"),
        ("http://example.com/?next=/index.html", "https://example.com/?next=/index.html"),
        ("ftp://www.example.com/index.html#top", "ftp://www.example.com/index.html"),
        ("mailto:a@www.example.com/", "mailto:a@www.example.com/"),
        ("www.example.com/a/ b", "https://example.com/a/%20b"),
        ("hello/", "hello/"),
    ],
)
def test_loose(item, expected):
    """Read http as https; a leading www., slashes at the end and index pages are gone; everything else stays."""
    assert loose(item) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://example.com/a", "http://example.com/A"),
        ("http://example.com/a", "http://example.com/a.html"),
        ("http://example.com/a/b", "http://example.com/a//b"),
        ("http://example.com/", "http://example.com:8080/"),
        ("http://example.com:80/", "https://example.com:80/"),
        ("http://example.com/", "http://user@example.com/"),
        ("http://example.com/", "http://m.example.com/"),
        ("http://example.com/", "ftp://example.com/"),
        ("http://example.com/?a", "http://example.com/?a="),
        ("http://example.com/?a+b", "http://example.com/?a%20b"),
        ("http://example.com/a%2Fb", "http://example.com/a/b"),
        ("http://example.com/?a=1&a=2", "http://example.com/?a=2&a=1"),
        ("http://example.com/?a;b", "http://example.com/?b;a"),
        ("http://example.com/?a=1", "http://example.com/?a=1/"),
    ],
)
def test_loose_keeps_apart(one, other):
    """Two pages stay two."""
    assert loose(one) != loose(other)


@pytest.mark.parametrize(
    ("written", "plain", "page"),
    [
        (" http:////EXAMPLE.com:80/./a/../%66oo ", "http://example.com/foo", "https://example.com/foo"),
        ("http:\\\\x:443/", "http://x:443/", "https://x/"),
        ("http://www/foo%2Ehtml", "http://www/foo.html", "https://www/foo.html"),
        ("http://example.com//", "http://example.com//", "https://example.com/"),
        ("http://a/b:c/d@foo.com/", "http://a/b:c/d@foo.com/", "https://a/b:c/d@foo.com"),
        ("http://:b@www.example.com", "http://:b@www.example.com/", "https://:b@example.com/"),
        ("http://example.com/foo/%2e%2", "http://example.com/foo/.%2", "https://example.com/foo/.%2"),
        ("http://example.com/%2e.bar", "http://example.com/..bar", "https://example.com/..bar"),
        ("http://example.com/foo/%2e%2e/%2e%2e/.%2e/", "http://example.com/", "https://example.com/"),
        ("http://example.com/foo%2zbar%2\xa9", "http://example.com/foo%2zbar%2%C2%A9", "https://example.com/foo%2zbar%2%C2%A9"),
        ("http://example.com/foo%00%51", "http://example.com/foo%00Q", "https://example.com/foo%00Q"),
        ("http://example.org/a/%2f/c", "http://example.org/a/%2F/c", "https://example.org/a/%2F/c"),
        ("http://example.org/foo/bar?", "http://example.org/foo/bar?", "https://example.org/foo/bar"),
        ("https://x/?\ufeff#\ufeff", "https://x/?%EF%BB%BF", "https://x/?%EF%BB%BF"),
        ("http://foo.com/index?&=1&a=1", "http://foo.com/index?=1&a=1", "https://foo.com/index?=1&a=1"),
        ("http://www.example.com/p%zz%77%v", "http://www.example.com/p%zzw%v", "https://example.com/p%zzw%v"),
        ("http://host/%25%32%35", "http://host/%2525", "https://host/%2525"),
        ("http://%31%36%38%2e1.2.3/%2E%73x/", "http://168.1.2.3/.sx/", "https://168.1.2.3/.sx"),
        ("http://www.google.com.../", "http://www.google.com.../", "https://google.com.../"),
        ("http://host%23.com/%257E", "http://host%23.com/%257E", "http://host%23.com/%257E"),
        ("http://e.com/do?1750,4&q=a+b", "http://e.com/do?1750,4&q=a+b", "https://e.com/do?1750,4&q=a+b"),
    ],
)  # fmt: skip
def test_cases_of_other_programs(written, plain, page):
    """Those of the URL standard, crawler-commons, surt and w3lib in which a step may go wrong."""
    for name, expected in (("sorted", plain), ("loose", page)):
        change = normalizer(name)
        assert [change(written), change(expected)] == [expected] * 2


def test_each_index_page_is_its_folder():
    """With any of the index pages, in capitals too."""
    folder = loose("https://example.com/a")
    for name in INDEX_PAGES:
        assert {loose(f"https://example.com/a/{each}") for each in (name, name.upper())} == {folder}


def test_bytes_that_are_no_utf8():
    """They are filtered as they are."""
    assert whatwg(b"http://example.com/\xff#x") == b"http://example.com/\xff#x"


@pytest.mark.parametrize("item", [{"url": "http://A/"}, 7, None, ["http://A/"]])
def test_other_json_values_are_left_alone(item):
    """Only text is a URL."""
    assert sorted_(item) is item


#: Escapes of escapes: what comes of one completes another.
nested = st.lists(st.sampled_from(["%", "2", "3", "5", "6", "e", "E", "7", "F", "/", ".", "?", "&", "=", "%25", "%2e"]))

urls = st.one_of(
    nested.map(lambda parts: "http://example.com/" + "".join(parts)),
    nested.map(lambda parts: "a:" + "".join(parts)),
    st.text(),
    st.text(alphabet="abAB.:/?#&=%[]@ \\é0123456789-_\t\n").map(lambda text: "http://example.com/" + text),
    st.text(alphabet="abAB.:/?#&=%@ é019-\u3002\xad"),
    st.text(alphabet="ab.:/?#\\ \t\n@0"),
    st.lists(st.sampled_from(["www.", "WWW", "index.php", "Default.ASP", "/", ".", "a", ":80", ":443", "?", "#"])).map(
        lambda parts: "http://" + "".join(parts)
    ),
    st.sampled_from(["example.com:", "data:", "a:", "file:", "a.b://"]).flatmap(
        lambda start: st.text(alphabet="ab.:08/?# \t\n\\&=|C").map(lambda text: start + text)
    ),
)


@pytest.mark.parametrize("normalize", [whatwg, sorted_])
@given(urls)
def test_text_and_its_bytes_are_the_same(normalize, text):
    """A str and its UTF-8 are one item."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    of_bytes = normalize(data)
    assert normalize(text) == (of_bytes.decode() if isinstance(of_bytes, bytes) else of_bytes)


@pytest.mark.parametrize("normalize", [whatwg, sorted_, loose])
@given(urls)
def test_twice_is_once(normalize, text):
    """What is normalised stays as it is."""
    once = normalize(text)
    assert normalize(once) == once


@given(urls)
def test_loose_merges_more_than_sorted(text):
    """Items that are one under ``sorted`` are one under ``loose``: its form follows from that of ``sorted``."""
    assert loose(sorted_(text)) == loose(text)


@pytest.mark.parametrize("end", ["", "a"])
@pytest.mark.parametrize("part", ["/", "/index.html", "www."])
def test_a_million_parts(part, end):
    """``loose`` takes time that grows with the length and not with its square."""
    begin = "http://" if part == "www." else "http://example.com"
    assert len(loose(begin + part * 100_000 + end)) < 2_000_000


@pytest.mark.parametrize("end", ["@", ":", "", "/"])
def test_a_million_dots(end):
    """Time grows with the length and not with its square (which would be hours here)."""
    text = "a." * 500_000 + "a" + end
    assert whatwg(text) in {text, f"https://{text.rstrip(':/')}/"}


@given(nested.map("".join))
def test_escapes_are_replaced_until_nothing_changes(text):
    """As many passes over the whole text do, of which each replaces all escapes that it finds."""
    made, before = text, None
    while made != before:
        before = made
        made = re.sub(r"%[0-9A-Fa-f]{2}", in_normal_form, made)
    assert plain_escapes(text) == made


def in_normal_form(found: re.Match[str]) -> str:
    """An unreserved character, or the escape in capitals."""
    char = chr(int(found[0][1:], 16))
    return char if re.fullmatch(r"[A-Za-z0-9._~-]", char) else found[0].upper()


def test_a_million_nested_escapes():
    """Time grows with the length and not with its square, whatever an escape is completed by."""
    assert plain_escapes("%3" * 500_000 + "%37") == "7"
    assert sorted_("http://example.com/" + "%3" * 200_000 + "%37") == "http://example.com/7"


@given(st.permutations(["a=1", "b=2", "c=3", "utm_source=x", "d"]))
def test_any_order_of_different_parameters(pairs):
    """One item, whatever the order."""
    assert sorted_("http://example.com/?" + "&".join(pairs)) == "http://example.com/?a=1&b=2&c=3&d"


def test_no_such_normalisation():
    """The message lists those there are."""
    with pytest.raises(ValueError, match="none, whatwg, sorted, loose"):
        normalizer("canonical")
