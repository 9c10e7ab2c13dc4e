"""The site that crawlers are tested on: what it has, and what its server answers."""

from __future__ import annotations

import http.client
from collections import Counter

import pytest
from support.site import START, Served, generated


def reached(pages) -> set[str]:
    found, ahead = set(), [START]
    while ahead:
        path = ahead.pop()
        if path not in found:
            found.add(path)
            ahead += pages[path].leads_to()
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("count", [20, 500, 2000])
def test_every_page_can_be_reached(count):
    """A crawler that follows links and redirects finds every page, and no others."""
    pages = generated(count)
    assert reached(pages) == pages.keys()


def test_it_has_all_that_troubles_crawlers():
    """The generated site has redirects, loops of them, missing pages, failing pages and relative links."""
    pages = generated()
    loops = [each for each in pages.values() if each.location and pages[each.leads_to().pop()].location == each.path]
    assert Counter(each.status for each in pages.values()) == {200: 1852, 301: 80, 302: 8, 404: 20, 500: 20, 0: 20}
    assert len(loops) == 8
    absolute = ("/", "http", "mailto")
    assert all(any(not link.startswith(absolute) for link in each.links) for each in pages.values() if each.links)


def test_served():
    """The server answers each page with its status, and notes the path and host of each request."""
    with Served(count=100) as site:
        client = http.client.HTTPConnection("127.0.0.1", site.port)
        told = []
        for path in ("/part0/0.html", "/part7/7.html", "/part3/33.html", "/part6/66.html", "/nothing"):
            client.request("GET", path)
            answer = client.getresponse()
            told.append((answer.status, answer.headers["Location"], b"<a href=" in answer.read()))
        client.request("GET", "/part9/99.html")
        with pytest.raises(http.client.RemoteDisconnected):
            client.getresponse()
        client.close()
        assert told == [
            (200, None, True),
            (301, "/part8/8.html", False),
            (404, None, False),
            (500, None, False),
            (404, None, False),
        ]
        assert site.fetched("127.0.0.1")[-2:] == ["/nothing", "/part9/99.html"]
        assert site.fetched("localhost") == []
