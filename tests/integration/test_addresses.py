"""Addresses behind which no filter can be: an error of the tree, at once; and a server that is only away."""

from __future__ import annotations

import re
import threading

import pytest
from support.answering import answering
from support.asking import SHORT, awaited, blocking

from urifilter_redis import ServerUnavailable, Timeouts, UriFilter, UriFilterError


@pytest.fixture(params=[blocking, awaited], ids=["blocking", "asyncio"])
def ask(request):
    """Open a filter and ask it something."""
    return request.param


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("redis://nosuch.invalid:6379/0", "nosuch.invalid"),
        ("redis://a..b:6379/0", "label empty"),
        ("unix:///nosuch/socket", "No such file"),
        ("{url}/99", "DB index is out of range"),
        ("{url}/0?encoding=nosuch&decode_responses=1", "unknown encoding: nosuch"),
        ("{url}/0?encoding_errors=nosuch&decode_responses=1", "unknown error handler"),
    ],
)
def test_hopeless_address(any_server, ask, address, text):
    """It is not tried again."""
    url = address.format(url=any_server.url.removesuffix("/0"))
    with pytest.raises(ServerUnavailable, match=text) as caught:
        ask(url)
    assert "gave up" not in str(caught.value)


def test_an_option_that_there_is_not(any_server, ask):
    """Nothing is asked: the address is wrong, and says where."""
    with pytest.raises(ValueError, match="nosuch: there is no such option"):
        ask(f"{any_server.url}?nosuch=1")


@pytest.mark.parametrize("scheme", ["redis", "unix"])
def test_server_that_restarts_is_waited_for(make_server, scheme):
    """Connections are refused, or its socket is not there for a moment: the call gets its answer all the same."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    url = server.url if scheme == "redis" else f"unix://{server.socket}"
    with UriFilter.create("news", capacity=1000, redis=url, timeouts=Timeouts(total=60)) as news:
        news.insert("x")
        server.ask("shutdown")
        server.process.wait(60)
        assert not server.socket.exists()
        asked = threading.Thread(target=lambda: answers.append(news.contains("x")))
        answers: list[bool] = []
        asked.start()
        server.start()
        asked.join(60)
        assert answers == [True]


def test_server_that_refuses_connections_is_tried_again(ask):
    """It may be about to start."""
    with pytest.raises(ServerUnavailable, match=re.escape("gave up after 0.3 s")):
        ask("redis://127.0.0.1:1/0")


@pytest.mark.parametrize("answer", [b"+OK\r\n", b":7\r\n", b"*2\r\n+a\r\n+b\r\n", b"$-1\r\n", b"*0\r\n"])
def test_something_else_answers(ask, answer):
    """What speaks Redis's protocol and answers nonsense to everything is an error of the tree."""
    with answering(lambda asked: answer * len(re.findall(rb"^\*", asked, re.MULTILINE))) as port:
        url = f"redis://127.0.0.1:{port}/0"
        with pytest.raises(UriFilterError):
            ask(url)
        with pytest.raises(UriFilterError):
            UriFilter.create("news", capacity=1000, redis=url, timeouts=SHORT)
