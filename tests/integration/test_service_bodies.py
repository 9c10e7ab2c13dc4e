"""Whatever bytes are sent to the service, it answers a clean 4xx or does what was asked, and goes on."""

from __future__ import annotations

import base64
import contextlib
import gc
import gzip
import json
import math
import os
import re
import resource
import select
import time
from functools import partial

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.servers import PATIENCE, wait_until
from support.service import Service, known, request
from support.together import together

from urifilter_redis import UriFilter
from urifilter_redis.http_api import DEFAULT_PATH as UNIQUE
from urifilter_redis.http_api import ERROR_CODES
from urifilter_redis.service import bodies, requests, tokens
from urifilter_redis.service.errors import Refusal

BODY, ITEMS, ITEM = 100_000, 100, 1000
LIMITS = f"[limits]\nbody = {BODY}\nitems = {ITEMS}\nitem = {ITEM}\nwrong_tokens = 1_000_000\n"
FILTERS = """
[filters.news]
capacity = 100_000
error_rate = 1e-9
[filters.ring]
capacity = 1000
retention = "ring"
slices = 3
period = "1d"
"""
INSERT, CONTAINS, REMOVE = (f"/v1/filters/news/{command}" for command in ("insert", "contains", "remove"))

#: Nesting that Python's JSON reader refuses at once, and nesting that it refuses or not, as deep as its caller is.
DEEP, HALF_DEEP = 100_000, 900


@contextlib.contextmanager
def running(redis_url, *arguments, **options):
    with Service(redis_url, *arguments, **options) as service:
        yield service
        with service.raw() as connection:
            assert connection.ask(request("GET", "/readyz")).json() == {"status": "ready"}
        assert service.log().partition("Traceback")[2] == ""


@pytest.fixture(scope="module")
def service(redis):
    """A service without tokens."""
    with running(redis.url, settings=LIMITS + FILTERS) as service:
        yield service


@pytest.fixture(scope="module")
def quick(redis):
    """A service that waits for a request only shortly."""
    with running(redis.url, "--prefix", "quick", settings=LIMITS + "seconds = 0.3\n" + FILTERS) as service:
        yield service


@pytest.fixture(scope="module")
def inserted(redis):
    """Tell how many items were ever inserted, by the service with a prefix."""
    with contextlib.ExitStack() as stack:
        opened = {}

        def count(prefix="urifilter"):
            if prefix not in opened:
                opened[prefix] = stack.enter_context(UriFilter.open("news", redis=redis.url, prefix=prefix))
            return opened[prefix].info().inserted

        yield count


@pytest.fixture
def refuses(service, inserted):
    """Check that a request is refused, on one connection for all of a test that stays open; nothing is inserted."""
    before = inserted()
    with contextlib.ExitStack() as stack:
        connection = None

        def check(data, status, code, *, closes=False):
            nonlocal connection
            connection = connection or stack.enter_context(service.raw())
            answer = refusal(connection.ask(data), status, code)
            assert closes == (answer.headers.get("connection") == "close")
            if closes:
                connection = None
            return answer

        yield check
    assert before == inserted()


def refusal(answer, status, code):
    """Check that an answer is an error that is told as all are."""
    assert answer is not None
    assert (status, code, "application/json") == (
        answer.status,
        answer.json()["error_code"],
        answer.headers["content-type"],
    )
    assert ERROR_CODES[code].status == status
    assert set(answer.json()) <= {"error_code", "error", "indices", "ages", "was_there"}
    assert answer.json()["error"]
    return answer


def clean(answer):
    """Check that an answer is an error, of the service or of HTTP itself, told as all are."""
    assert answer is not None
    assert 400 <= answer.status < 500
    refusal(answer, answer.status, answer.json()["error_code"])
    if answer.json()["error_code"] in {"bad_http", "head_too_large"}:
        assert answer.headers["connection"] == "close"


def dump(value, **options):
    return json.dumps(value, **options).encode("utf-8", "surrogatepass")


def asking(*items, **more):
    return {"filter_typeid": "news", "URI_list": list(items), **more}


def unique(body, **headers):
    return request("POST", UNIQUE, body if isinstance(body, bytes) else dump(body), **headers)


# What is no JSON

BAD_JSON = {
    "empty": b"",
    "blank": b" \r\n\t",
    "no JSON": b"filter_typeid=news&URI_list=a",
    "quotes": b"{'filter_typeid': 'news', 'URI_list': []}",
    "truncated": dump(asking("a", "b"))[:-1],
    "truncated in an escape": b'{"filter_typeid":"news","URI_list":["\\ud8',
    "more behind": dump(asking("a")) + b"x",
    "two": dump(asking("a")) * 2,
    "comma": b'{"filter_typeid":"news","URI_list":["a",]}',
    "NaN": b'{"filter_typeid":"news","URI_list":["a",NaN]}',
    "Infinity": b'{"filter_typeid":"news","URI_list":["a",{"b":[Infinity]}]}',
    "-Infinity": b'{"filter_typeid":"news","URI_list":["a",-Infinity]}',
    "NaN for a field": b'{"filter_typeid":"news","URI_list":["a"],"max_age":NaN}',
    "5,000 digits": b'{"filter_typeid":"news","URI_list":["a",1' + b"0" * 5000 + b"]}",
    "-5,000 digits for a field": b'{"filter_typeid":-1' + b"0" * 5000 + b',"URI_list":["a"]}',
    "deep around": b"[" * DEEP + b"]" * DEEP,
    "deep objects around": b'{"URI_list":' * (DEEP // 12),
    "deep never ending": b"[" * BODY,
    "deep in items": b'{"filter_typeid":"news","URI_list":["a",' + b"[" * 40_000 + b"]" * 40_000 + b"]}",
    "deep objects in items": b'{"filter_typeid":"news","URI_list":["a",'
    + b'{"":' * 15_000
    + b"1"
    + b"}" * 15_000
    + b"]}",
    "two byte order marks": b"\xef\xbb\xbf" * 2 + dump(asking("a")),
    "a byte order mark behind": dump(asking("a")) + b"\xef\xbb\xbf",
    "UTF-16": json.dumps(asking("a")).encode("utf-16"),
    "UTF-16 without a mark": json.dumps(asking("a")).encode("utf-16-be"),
    "UTF-32": json.dumps(asking("a")).encode("utf-32"),
    "Latin-1": '{"filter_typeid":"news","URI_list":["é"]}'.encode("latin-1"),
    "overlong UTF-8": b'{"filter_typeid":"news","URI_list":["\xc0\xaf"]}',
    "beyond Unicode": b'{"filter_typeid":"news","URI_list":["\xf4\x90\x80\x80"]}',
    "NUL in a string": b'{"filter_typeid":"news","URI_list":["a\0b"]}',
    "NUL behind": dump(asking("a")) + b"\0",
    "NULs": b"\0" * 1000,
    "line end in a string": b'{"filter_typeid":"news","URI_list":["a\nb"]}',
    "gzip that does not say so": gzip.compress(dump(asking("a"))),
    "gzip bomb that does not say so": gzip.compress(b"\0" * 50_000_000, 9)[:BODY],
}


@pytest.mark.slow
@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON)
def test_what_is_no_json(refuses, body):
    """It is refused, and the connection may be used again."""
    body = body[:BODY]
    for path in (UNIQUE, INSERT, CONTAINS):
        refuses(request("POST", path, body), 400, "bad_json")


@pytest.mark.slow
def test_nesting_that_python_may_just_read(refuses):
    """It is no JSON for the service, or an item that cannot be filtered; not a bug."""
    for opens, closes in ((b"[", b"]"), (b'{"":[', b"]}")):
        nested = opens * HALF_DEEP + closes * HALF_DEEP
        for wrapped in (nested, b'{"filter_typeid":"news","URI_list":["a",' + nested + b"]}"):
            with contextlib.suppress(AssertionError):
                refuses(unique(wrapped), 400, "bad_json")
                continue
            if wrapped is nested:
                refuses(unique(wrapped), 422, "bad_request")
            else:
                assert refuses(unique(wrapped), 422, "bad_item").json()["indices"] == [1]


# What is JSON and not what it must be

ANYTHING = (None, True, 0, 1.5, "", "a", [], ["a"], {}, {"a": []})
BAD_NAMES = ("", "a b", "ä", "a/b", "a\n", "\0", "\ud800", "x" * 65, "news\n", "{news}")
BAD_REQUESTS = {
    UNIQUE: [
        *(asking("a") | {"filter_typeid": value} for value in (*ANYTHING, *BAD_NAMES) if value != "a"),
        *(asking("a") | {"URI_list": value} for value in ANYTHING if not isinstance(value, list)),
        *(asking("a") | {"access_token": value} for value in ANYTHING if not isinstance(value, str | None)),
        {"filter_typeid": "news"},
        {"URI_list": ["a"]},
        asking("a", max_age=1),
        asking("a", more=1),
        asking("a", uri_list=[]),
        asking("a") | {"": 0},
        *ANYTHING,
    ],
    INSERT: [
        *({"items": value} for value in ANYTHING if not isinstance(value, list)),
        *({"items": ["a"], "max_age": value} for value in (*ANYTHING, -1, "1", 0.5) if value is not None),
        {"items": ["a"], "access_token": "a"},
        asking("a"),
        *ANYTHING,
    ],
}


@pytest.mark.sampled
@pytest.mark.parametrize("path", BAD_REQUESTS)
def test_wrong_fields(refuses, path):
    """A field that is missing, unknown or of the wrong type is refused."""
    for body in BAD_REQUESTS[path]:
        refuses(request("POST", path, dump(body)), 422, "bad_request")


@pytest.mark.slow
def test_numbers_beyond_everything(refuses):
    """Numbers that a double cannot hold are no items, and no max_age."""
    for text in (b"1e400", b"-1e400", b"1e999", b'{"a":[1e999]}'):
        answer = refuses(unique(b'{"filter_typeid":"news","URI_list":["a",' + text + b"]}"), 422, "bad_item")
        assert answer.json()["indices"] == [1]
    for text in (b"1e400", b"-1e400", b"-1", b"-0"):
        body = b'{"items":["a"],"max_age":' + text + b"}"
        refuses(request("POST", CONTAINS.replace("news", "ring"), body), 422, "bad_request")


@pytest.mark.parametrize("max_age", [4, 10**9, 2**31, 2**63, 2**64, 10**400, 10**4000 - 1])
def test_a_huge_max_age(refuses, max_age):
    """There are not so many slices."""
    for command in ("insert", "contains"):
        data = request("POST", f"/v1/filters/ring/{command}", dump({"items": ["a"], "max_age": max_age}))
        refuses(data, 409, "not_for_this_filter")


def test_limits(refuses, service):
    """Too many items, items too long: refused, and the long ones named; one less is not."""
    refuses(unique(asking(*range(ITEMS + 1))), 422, "too_many_items")
    long = ["é" * (ITEM // 2), "a" * (ITEM + 1), ["a" * ITEM], "é" * (ITEM // 2 + 1), "\ud800" * 334]
    assert refuses(unique(asking(*long)), 422, "item_too_long").json()["indices"] == [1, 2, 3, 4]
    nested = ["a", 0]
    for _ in range(255):
        nested = [nested]
    assert refuses(unique(asking("b", [nested])), 422, "bad_item").json()["indices"] == [1]
    with service.raw() as connection:
        answer = connection.ask(request("POST", CONTAINS, dump({"items": ["a" * ITEM, *[nested] * (ITEMS - 1)]})))
        assert answer.json() == {"filter": "news", "ages": [0] * ITEMS, "total": ITEMS, "seen": 0}


def test_large_bodies(refuses, service, inserted):
    """A body over the limit is refused, whether its length was told or not; one at the limit is not."""
    padded = dump(asking("a")).ljust(BODY + 1)
    refuses(unique(padded), 413, "body_too_large", closes=True)
    refuses(unique(padded * 30), 413, "body_too_large", closes=True)
    refuses(unique(chunked(padded, 1000), Content_Length=None, Transfer_Encoding="chunked"), 413, "body_too_large",
            closes=True)  # fmt: skip
    with service.raw() as connection:
        body = dump({"items": ["a"]}).ljust(BODY)
        told = {"Content_Length": None, "Transfer_Encoding": "chunked"}
        for data in (request("POST", CONTAINS, body), request("POST", CONTAINS, chunked(body, 999), **told)):
            assert connection.ask(data).json()["ages"] == [0]


@pytest.mark.slow
def test_a_body_that_is_told_to_be_too_large_is_not_waited_for(quick):
    """It is refused when its head is there, and the client not told to go on."""
    for length in (BODY + 1, 1 << 40, (1 << 64) - 1):
        for expects in ({}, {"Expect": "100-continue"}):
            with quick.raw() as connection:
                connection.send(unique(b"", Content_Length=str(length), **expects))
                answer = refusal(connection.answer(), 413, "body_too_large")
                assert answer.headers["connection"] == "close"


def chunked(body, size):
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in [*parts, b""])


@pytest.mark.sampled
@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, identity", "x"])
def test_compressed_bodies(refuses, encoding):
    """They are refused, bombs too, unread."""
    bomb = gzip.compress(b'{"filter_typeid":"news","URI_list":[' + b'"a",' * 10_000_000, 9)
    refuses(unique(bomb, Content_Encoding=encoding), 415, "unsupported_encoding", closes=True)
    refuses(unique(asking("a"), Content_Encoding=encoding), 415, "unsupported_encoding", closes=True)


BAD_KEYS = {"empty": "", "blank": "  ", "201 characters": "x" * 201, "not ASCII": "é", "a tab": "a\tb"}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_bad_keys(refuses, key):
    """A key is 1 to 200 printable ASCII characters."""
    for data in (
        unique(asking("a"), Idempotency_Key=key),
        request("POST", INSERT, b'{"items":["a"]}', Idempotency_Key=key),
        request("POST", INSERT.replace("insert", "retry_dead_letters"), b"{}", Idempotency_Key=key),
    ):
        refuses(data, 422, "bad_request")


def test_control_characters_in_headers(service, inserted):
    """They are no HTTP."""
    before = inserted()
    for byte in "\0\x01\x1b\x7f\n\r":
        with service.raw() as connection:
            clean(connection.ask(unique(asking("a"), Idempotency_Key=f"a{byte}b")))
    assert before == inserted()


def test_keys(service):
    """A request that is repeated under its key is answered as before."""
    with service.raw() as connection:
        for key in ("k", "x" * 200, "a b", "~!\"'\\%00", "0123456789abcdef/0/1"):
            first, second = (connection.ask(unique(asking(f"keyed {key}"), Idempotency_Key=key)) for _ in range(2))
            assert first.json()["URI_list_unique"] == [f"keyed {key}"]
            assert (first.status, first.body) == (second.status, second.body)


@pytest.mark.parametrize("name", ["a", "x" * 128, "Root=1-67891233-abcdef012345678912345678", "A.b_c:d+e@f-9="])
def test_names_of_requests(service, name):
    """The answer repeats the request's own name, and that of the attempt, whatever is asked and answered."""
    given = {"X_Request_Id": name, "Urifilter_Attempt": name[::-1]}
    with service.raw() as connection:
        for data, status in (
            (unique(asking(), **given), 200),
            (unique(b"no", **given), 400),
            (request("GET", "/nowhere", **given), 404),
            (request("GET", "/healthz", Host="example.org", **given), 400),
        ):
            answer = connection.ask(data)
            told = answer.headers["x-request-id"], answer.headers["urifilter-attempt"]
            assert (answer.status, *told) == (status, name, name[::-1])


def test_names_that_are_made(service):
    """A request without a name, or with one that is too long or may be a URI, gets a name that no other has."""
    wrong = (None, "", "x" * 129, "a b", "https://example.com/", "\xff", '\t"{}%s%0a<script>', "a\tb")
    with service.raw() as connection:
        made = [
            connection.ask(request("GET", "/healthz", X_Request_Id=name)).headers["x-request-id"]
            for name in (*wrong, *[None] * 20)
        ]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch("[0-9a-f]{12}-[0-9a-f]+", name) for name in made)


# What is valid

TEXT = st.text(st.characters(), max_size=20)  # lone surrogates, too
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))
NO_NULL = JSON.filter(lambda item: item is not None)
FEW = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def new_of(named, items):
    """Return those that are not named yet, and name all: by type and text, so that 1, 1.0, true and "1" are four."""
    new = []
    for item in items:
        name = f"{isinstance(item, str)} {json.dumps(item, sort_keys=True)}"
        if name not in named:
            new.append(item)
            named.add(name)
    return new


@pytest.fixture(scope="module")
def seen():
    return set()


def shown(items):
    """Return items as JSON, by which 1, 1.0 and true differ, and -0.0 and 0.0."""
    return [json.dumps(item, sort_keys=True) for item in items]


@pytest.mark.slow
@FEW
@given(items=st.lists(NO_NULL, max_size=8), raw=st.booleans(), blank=st.sampled_from(["", " ", "\r\n\t"]))
@example(items=["\ud800", "\udfff", "a\ud83d", "\ude00b", "\0", "\ufeff", "\u2028"], raw=True, blank="")
@example(items=[{"\ud800": ["\udc00"]}, {"\0": 1}, {"": {}}, [], {}, [[]], "", "null"], raw=True, blank="")
@example(items=[0, -0.0, 0.0, 1, 1.0, True, False, [None], "1", "0"], raw=False, blank=" ")
@example(items=[5e-324, 1.7976931348623157e308, 10**300, 10**900, -(10**900), 2**63, 2**64, 0.1], raw=False, blank="")
def test_any_json_value_is_an_item(service, seen, items, raw, blank):
    """Each that is new comes back exactly as it was sent, in its place; after that all were seen."""
    items = json.loads(json.dumps(items))  # surrogates side by side are one character
    items = [item for item in items if len(json.dumps(item)) < ITEM - 10]
    text = json.dumps(asking(*items), ensure_ascii=not raw, separators=(f",{blank}", f"{blank}:"))
    with service.raw() as connection:
        answer = connection.ask(unique(text.encode("utf-8", "surrogatepass")))
        assert answer.status == 200, answer
        new = new_of(seen, items)
        counts = {"filter_typeid": "news", "total": len(items), "unique": len(new)}
        assert shown(new) == shown(answer.json()["URI_list_unique"])
        assert counts | {"URI_list_unique": answer.json()["URI_list_unique"]} == answer.json()
        assert answer.body.isascii()
        answer = connection.ask(request("POST", CONTAINS, dump({"items": items})))
        assert answer.json()["ages"] == [1] * len(items)


def test_duplicate_fields_and_keys(service):
    """The last one counts, as everywhere in Python."""
    with service.raw() as connection:
        body = b'{"filter_typeid":"none","URI_list":["twice 1"],"filter_typeid":"news","URI_list":["twice 2"]}'
        assert connection.ask(unique(body)).json()["URI_list_unique"] == ["twice 2"]
        assert connection.ask(request("POST", CONTAINS, b'{"items":["twice 1","twice 2"]}')).json()["ages"] == [0, 1]
        body = b'{"filter_typeid":"news","URI_list":[{"twice":1,"twice":2}]}'
        assert connection.ask(unique(body)).json()["URI_list_unique"] == [{"twice": 2}]


# What nobody thought of


def refuse(text):
    raise ValueError(text)


def finite(text):
    return float(text) if math.isfinite(float(text)) else refuse(text)


def allowed(body):
    """Whether a body is a request for unique, but for the length of its items."""
    try:
        read = json.loads(body.decode("utf-8", "surrogatepass"), parse_constant=refuse, parse_float=finite)
    except ValueError:
        return False
    return (
        isinstance(read, dict)
        and {"filter_typeid", "URI_list"} <= read.keys() <= {"filter_typeid", "URI_list", "access_token"}
        and read["filter_typeid"] == "news"
        and isinstance(read["URI_list"], list)
        and None not in read["URI_list"]
        and isinstance(read.get("access_token"), str | None)
    )


PIECES = st.sampled_from([b"", b'"', b"\\", b"\\u", b"[", b"]", b"{", b"}", b",", b":", b"1e999", b"NaN", b"-", b"\0",
                          b"\xff", b"null", b"\xed\xa0\x80", b" "]) | st.binary(max_size=8)  # fmt: skip


@st.composite
def mangled(draw):
    """A request, cut up, doubled and with more in it."""
    body = dump(asking(*draw(st.lists(JSON, max_size=3)), access_token="a"), ensure_ascii=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 3))):
        start, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
        body = body[:start] + draw(PIECES) + body[draw(st.sampled_from([start, end])) :]
    return body


@pytest.mark.slow
@settings(FEW, max_examples=400)
@given(body=mangled() | st.binary(max_size=100) | JSON.map(dump))
def test_mangled_bodies(service, kept, body):
    """What is no request is refused, on a connection that goes on; what is one still is answered."""
    answer = kept.ask(unique(body))
    if allowed(body):
        assert answer.status == 200 or refusal(answer, 422, "item_too_long"), body
    else:
        assert 400 <= answer.status < 500, body
        refusal(answer, answer.status, answer.json()["error_code"])
        assert answer.json()["error_code"] in {"bad_json", "bad_request", "bad_item", "filter_not_found"}, body
    assert "connection" not in answer.headers


class Kept:
    """A connection that is kept for as long as the service does."""

    def __init__(self, service) -> None:
        self._service, self._connection = service, None

    def ask(self, data):
        self._connection = self._connection or self._service.raw()
        answer = self._connection.ask(data)
        if answer is None or "connection" in answer.headers or answer.status >= 500:
            self.close()
        assert answer is not None
        return answer

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture(scope="module")
def kept(service):
    kept = Kept(service)
    yield kept
    kept.close()


@pytest.mark.slow
@settings(FEW, max_examples=100)
@given(
    fields=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("filter_typeid", "URI_list", "access_token", "max_age", "more", ""), JSON)
    ),
    path=st.sampled_from([UNIQUE, INSERT, CONTAINS, REMOVE, "/v1/filters/ring/insert", "/v1/filters/none/forget"]),
)
def test_any_fields(kept, fields, path):
    """Never a 500: it is answered, or refused as all is."""
    answer = kept.ask(request("POST", path, dump(fields)))
    if answer.status != 200:
        clean(answer)


@pytest.mark.slow
@settings(FEW, max_examples=150)
@given(
    data=st.binary(min_size=1, max_size=60)
    | st.builds(
        lambda data, at, piece, cut: data[: (at := at % len(data))] + piece + data[at + cut :],
        st.sampled_from([unique(asking("a", more=1)), request("GET", "/healthz")]),
        st.integers(0, 1000),
        st.binary(max_size=4) | st.sampled_from([b"\r\n", b"\n", b":", b" ", b"\r", b"%", b"%zz", b"\0"]),
        st.integers(0, 3),
    )
)
def test_mangled_requests(service, inserted, data):
    """No HTTP, or nearly: refused or answered; who sends no more is let go."""
    before = inserted()
    with service.raw() as connection:
        with contextlib.suppress(ConnectionError):
            connection.send(data)
            connection.end()
        answer = connection.answer(head=b"HEAD" in data)
        if answer is not None and answer.status != 200:
            clean(answer)
    assert before == inserted()


NO_HTTP = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "HTTP/9.9": b"GET /healthz HTTP/9.9\r\n\r\n",
    "no method": b"FETCH /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path that is not ASCII": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header without a name": b"GET /healthz HTTP/1.1\r\n: a\r\n\r\n",
    "a blank before the colon": b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "negative length": unique(b"{}", Content_Length="-1"),
    "garbage length": unique(b"{}", Content_Length="2x"),
    "no length": unique(b"{}", Content_Length=""),
    "hexadecimal length": unique(b"{}", Content_Length="0x2"),
    "signed length": unique(b"{}", Content_Length="+2"),
    "length of 5,000 digits": unique(b"{}", Content_Length="9" * 5000),
    "length over 64 bits": unique(b"{}", Content_Length=str(1 << 64)),
    "two lengths": unique(b"{}", Content_Length="2\r\nContent-Length: 3"),
    "length and chunks": unique(b"0\r\n\r\n", Transfer_Encoding="chunked"),
    "chunks that are none": unique(b"{}\r\n", Content_Length=None, Transfer_Encoding="chunked"),
    "a chunk of negative size": unique(b"-1\r\n{}\r\n0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked"),
    "a chunk of absurd size": unique(b"f" * 17 + b"\r\n", Content_Length=None, Transfer_Encoding="chunked"),
    "a chunk longer than it says": unique(b"1\r\n{}\r\n0\r\n\r\n", Content_Length=None, Transfer_Encoding="chunked"),
    "another transfer encoding last": unique(b"{}", Content_Length=None, Transfer_Encoding="chunked, gzip"),
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_http(service, inserted, data):
    """It is refused, and the connection closed."""
    before = inserted()
    with service.raw() as connection:
        clean(connection.ask(data))
        assert connection.answer() is None
    assert before == inserted()


def test_a_head_that_is_too_large(service):
    """64 KiB are enough for anybody."""
    endless = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X-More: and more\r\n" * 10_000
    for data in (endless, b"GET /" + b"x" * 200_000, b"G" * 200_000):
        with service.raw() as connection:
            with contextlib.suppress(ConnectionError):
                connection.send(data)
            answer = connection.answer()
            assert answer is None or refusal(answer, answer.status, answer.json()["error_code"]).status in {400, 431}
    with service.raw() as connection:
        connection.send(endless[: endless.rindex(b"\r\n", 0, 60_000)] + b"\r\n\r\n")
        assert connection.answer().json() == {"status": "ok"}


def test_trailers_do_not_pile_up(service):
    """What follows a chunked body is limited as heads are, also when the answer is given already."""
    for path in (UNIQUE, "/nowhere"):
        with service.raw() as connection:
            connection.send(
                request("POST", path, b"2\r\n{}\r\n0\r\n", Content_Length=None, Transfer_Encoding="chunked")
            )
            with pytest.raises(ConnectionError):
                for _ in range(1000):
                    connection.send(b"X-More: and more\r\n" * 1000)


def test_trailers_are_no_headers(service):
    """A key behind the body is not one."""
    told = {"Content_Length": None, "Transfer_Encoding": "chunked", "Trailer": "Idempotency-Key"}
    body = chunked(dump(asking("with a trailer")), 10)[:-2] + b"Idempotency-Key: a\r\n\r\n"
    with service.raw() as connection:
        answer = connection.ask(unique(body, **told))
        assert (answer.status, "idempotency-key" in answer.headers) == (200, False)


# Slow senders


@pytest.mark.slow
def test_a_body_that_does_not_come(quick, inserted):
    """After the time limit it is refused, and nothing inserted: bodies shorter than they say, and those that drip."""
    before = inserted("quick")
    body = dump(asking("slow"))
    told = {"Content_Length": None, "Transfer_Encoding": "chunked"}
    for data in (
        unique(body, Content_Length=str(len(body) + 1)),
        unique(body[:-1], Content_Length=str(len(body))),
        unique(b"", Content_Length="10"),
        unique(chunked(body, 10)[:-5], **told),
        unique(chunked(body, 10)[:-2], **told),
        unique(b"", **told),
    ):
        with quick.raw() as connection:
            answer = refusal(connection.ask(data), 408, "too_slow")
            assert answer.headers["connection"] == "close"
            assert connection.answer() is None
    with quick.raw() as connection:
        connection.send(unique(b"", Content_Length="10000"))
        refusal(dripping(connection, b" "), 408, "too_slow")
    assert before == inserted("quick")


def dripping(connection, byte):
    """Send a byte again and again until there is an answer, and return that."""
    end = time.monotonic() + PATIENCE
    with contextlib.suppress(ConnectionError):
        while not select.select([connection._socket], [], [], 0.02)[0]:
            assert time.monotonic() < end
            connection.send(byte)
    return connection.answer()


@pytest.mark.slow
def test_a_head_that_does_not_come(quick):
    """After the time limit the connection is closed: a silent one, and with an answer those on which it has begun."""
    answers = {}

    def wait(name, start, byte):
        with quick.raw() as connection:
            connection.send(start)
            if name == "second":
                assert connection.answer().status == 200
            answers[name] = dripping(connection, byte) if byte else connection.answer()

    silent = ("silent", b"", b"")
    drips = ("dripping", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"x")
    second = ("second", request("GET", "/healthz") + b"GET /healthz HTTP/1.1\r\n", b"")
    together(partial(wait, *each) for each in (silent, drips, second))
    refusal(answers["second"], 408, "too_slow")
    assert {name: answer and answer.status for name, answer in answers.items()} == {
        "silent": None,
        "dripping": 408,
        "second": 408,
    }


def test_who_leaves_early(service, inserted):
    """A body whose sender is gone is not used, whole as it may look."""
    before = inserted()
    body = dump(asking("left early"))
    for data in (
        unique(body, Content_Length=str(len(body) + 1)),
        unique(body[:-1], Content_Length=str(len(body))),
        unique(chunked(body, 1000)[:-5], Content_Length=None, Transfer_Encoding="chunked"),
    ):
        with service.raw() as connection:
            connection.send(data)
            connection.end()
            answer = connection.answer()
            assert answer is None or answer.status in {400, 408}
    assert before == inserted()


@pytest.mark.slow
def test_who_only_listens_any_more(make_server):
    """A client that has closed its sending half gets its answers, of pipelined requests too; then it is the end."""
    redis = make_server()
    with running(redis.url, settings=FILTERS) as service, service.raw() as connection, service.raw() as other:
        assert other.ask(unique(asking("a"))).json()["unique"] == 1
        redis.suspend()
        connection.send(unique(asking("a", "b"), Idempotency_Key="half") + request("GET", "/healthz"))
        connection.end()
        for _ in range(3):  # by then the end has been read
            assert other.ask(request("GET", "/healthz")).status == 200
        redis.resume()
        assert connection.answer().json()["URI_list_unique"] == ["b"]
        assert connection.answer().json() == {"status": "ok"}
        assert connection.answer() is None


# HTTP/1.1


def test_pipelined_requests(service):
    """20 different ones in one write are answered in their order, and the third sees what the first did."""
    steps = [
        (unique(asking("p1", "p2", "p1")), 200, {"URI_list_unique": ["p1", "p2"]}),
        (unique(b"no"), 400, {"error_code": "bad_json"}),
        (request("POST", CONTAINS, b'{"items":["p2","p3"]}'), 200, {"ages": [1, 0]}),
        (request("GET", "/nowhere"), 404, {"error_code": "not_found"}),
        (unique(asking("a") | {"filter_typeid": "none"}), 404, {"error_code": "filter_not_found"}),
        (request("GET", UNIQUE), 405, {"error_code": "method_not_allowed"}),
        (unique(asking(*range(ITEMS + 1))), 422, {"error_code": "too_many_items"}),
        (unique(asking("a"), Idempotency_Key=""), 422, {"error_code": "bad_request"}),
        (request("POST", REMOVE, b'{"items":["a"]}'), 409, {"error_code": "not_for_this_filter"}),
        (request("GET", "/healthz"), 200, {"status": "ok"}),
        (request("GET", "/v1/filters"), 200, {"filters": ["news", "ring"]}),
        (unique(asking("a"), Host="example.org"), 400, {"error_code": "bad_host"}),
        (request("POST", INSERT, b'{"items":["p3","p1"]}'), 200, {"ages": [0, 1]}),
        (request("GET", "/v1/filters/none"), 404, {"error_code": "filter_not_found"}),
        (unique(asking("p4" * 400, *["p5" * 400] * 90)), 200, {"total": 91, "unique": 2}),
        (unique(asking("a") | {"filter_typeid": 1}), 422, {"error_code": "bad_request"}),
        (request("GET", "/readyz"), 200, {"status": "ready"}),
        (request("POST", "/healthz", b"{}"), 405, {"error_code": "method_not_allowed"}),
        (unique(asking("p1", "p6")), 200, {"URI_list_unique": ["p6"]}),
        (unique(b'{"filter_typeid":"news","URI_list":[1e999]}'), 422, {"error_code": "bad_item"}),
    ]
    with service.raw() as connection:
        connection.send(b"".join(data for data, *_ in steps))
        for number, (_, status, fields) in enumerate(steps):
            answer = connection.answer()
            found = {name: value for name, value in answer.json().items() if name in fields}
            assert (number, status, fields) == (number, answer.status, found)
        assert connection.ask(request("GET", "/healthz")).status == 200


def test_pipelined_requests_before_garbage(service):
    """They are answered before the garbage is."""
    with service.raw() as connection:
        connection.send(unique(asking("before garbage")) + request("GET", "/healthz") + b"garbage\r\n\r\n")
        assert connection.answer().json()["URI_list_unique"] == ["before garbage"]
        assert connection.answer().json() == {"status": "ok"}
        clean(connection.answer())
        assert connection.answer() is None


def test_expect_continue(service):
    """The body is asked for when it will be read."""
    body = dump(asking("expected"))
    with service.raw() as connection:
        for new in (1, 0):
            head = unique(body, Expect="100-continue").removesuffix(body)
            assert connection.ask(head).status == 100
            assert connection.ask(body).json()["unique"] == new


@pytest.mark.slow
def test_expect_continue_refused(guarded):
    """A body that will not be read is not asked for, and what follows is not taken for it."""
    with guarded.raw(timeout=10) as connection:
        answer = refusal(connection.ask(unique(b"", Expect="100-continue", Content_Length="1000", **bearer("x"))), 401,
                         "unauthorized")  # fmt: skip
        if answer.headers.get("connection") != "close":  # then the client may send something else
            assert connection.ask(request("GET", "/healthz")).json() == {"status": "ok"}


def test_http_10(service):
    """It is answered, though it names no host, and the connection closed."""
    body = dump(asking("1.0"))
    data = b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (UNIQUE.encode(), len(body), body)
    with service.raw() as connection:
        assert connection.ask(data).json()["unique"] == 1
        assert connection.answer() is None


def test_a_byte_order_mark(service):
    """One before the JSON is skipped: some languages write it."""
    with service.raw() as connection:
        assert connection.ask(unique(b"\xef\xbb\xbf" + dump(asking("\ufeffmarked")))).json()["unique"] == 1
        assert connection.ask(unique(asking("\ufeffmarked"))).json()["unique"] == 0


HTTP_2 = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQAAP__"}


@pytest.mark.parametrize("size", [1, 7, 1000, None])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_upgrades_with_a_body(service, framing, size):
    """Java and curl ask for HTTP/2 with every request: its body is read, and so is what is behind, however it comes."""
    body, more = dump(asking(f"upgraded {framing} {size}")), {}
    if framing == "chunks":
        body, more = chunked(body, 10), {"Content_Length": None, "Transfer_Encoding": "chunked"}
    asked = unique(body, **HTTP_2, **more)
    data = asked + unique(b"", **HTTP_2) + request("GET", "/healthz", **HTTP_2) + asked
    size = size or asked.index(b"\r\n\r\n") + 4  # the first part is a head
    with service.raw() as connection:
        for start in range(0, len(data), size):
            connection.send(data[start : start + size])
        assert connection.answer().json()["unique"] == 1
        refusal(connection.answer(), 400, "bad_json")
        assert connection.answer().json() == {"status": "ok"}
        assert connection.answer().json()["unique"] == 0
        assert connection.ask(request("GET", "/healthz")).json() == {"status": "ok"}


@pytest.mark.parametrize("size", [7, None])
@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize(("connection", "version"), [("close, Upgrade", b"1.1"), ("Upgrade", b"1.0")])
def test_an_upgrade_on_the_last_request_of_a_connection(service, framing, size, connection, version):
    """Its body is read, and nothing behind it; then the connection ends."""
    named = f"{framing} {size} {version}"
    body, more = dump(asking(f"last {named}")), {"Connection": connection}
    if framing == "chunks":
        body, more = chunked(body, 10), more | {"Content_Length": None, "Transfer_Encoding": "chunked"}
    asked = unique(body, **HTTP_2 | more).replace(b"HTTP/1.1", b"HTTP/" + version)
    behind = unique(asking(f"behind {named}"))
    data = asked + behind
    size = size or asked.index(b"\r\n\r\n") + 4
    with service.raw() as raw:
        for start in range(0, len(data), size):
            with contextlib.suppress(ConnectionError):  # it may be answered and closed before all is sent
                raw.send(data[start : start + size])
        assert raw.answer().json()["unique"] == 1
        assert raw.answer() is None
    with service.raw() as raw:
        assert raw.ask(behind).json()["unique"] == 1


def test_upgrades(service):
    """There are none: the request is answered as if it did not ask for one."""
    for to in ("websocket", "h2c", "TLS/1.2"):
        with service.raw() as connection:
            answer = connection.ask(request("GET", "/healthz", Connection="Upgrade", Upgrade=to))
            assert (answer.status, answer.json()) == (200, {"status": "ok"})


def test_wrong_paths_and_methods(refuses):
    """404, and 405 with the methods that there are."""
    for path in ("/nowhere", "/v1", "/v1/filters/", "/v1/filters/news/", "/v1/filters/news/none", "/%00",
                 "/v1/filters/a%2Fb", UNIQUE + "/", "//", "/docs/", "/redoc", "/..%2f..%2fetc/passwd", "/page.css/..",
                 "/%ff"):  # fmt: skip
        refuses(request("GET", path), 404, "not_found")
    for method, path, there in (
        ("GET", UNIQUE, "POST"),
        ("PUT", UNIQUE, "POST"),
        ("OPTIONS", UNIQUE, "POST"),
        ("GET", INSERT, "POST"),
        ("GET", "/v1/filters/news/drop", "POST"),
        ("POST", "/v1/filters", "GET"),
        ("POST", "/v1/filters/news", "GET"),
        ("POST", "/v1/filters/news", "DELETE"),
        ("POST", "/healthz", "GET"),
        ("TRACE", "/metrics", "GET"),
    ):
        answer = refuses(request(method, path), 405, "method_not_allowed")
        assert there in answer.headers["allow"].split(", ")
    for name in ("a%20b", "x" * 65, "news%0A", "%7Bnews%7D", "%ED%A0%80", "%00"):
        refuses(request("POST", f"/v1/filters/{name}/insert", b'{"items":["a"]}'), 422, "bad_request")
        refuses(request("GET", f"/v1/filters/{name}"), 422, "bad_request")
    refuses(request("POST", "/v1/filters/none/insert", b'{"items":["a"]}'), 404, "filter_not_found")


def test_head(service):
    """A HEAD is answered as a GET, without a body, and leaves the connection in order: probes send it."""
    with service.raw() as connection:
        for path in ("/", "/healthz", "/readyz", "/metrics", "/v1/filters", "/v1/filters/news", UNIQUE, "/nowhere"):
            connection.send(request("HEAD", path))
            answer = connection.answer(head=True)
            status = 404 if path == "/nowhere" else 405 if path == UNIQUE else 200
            assert (path, answer.status) == (path, status)
            assert connection.ask(request("GET", "/healthz")).json() == {"status": "ok"}


GET = request("GET", "/v1/filters")
CHUNKED = b"1\r\n{\r\n0\r\n\r\n"

#: Heads of which a proxy before the service may see another request than the service.
TWOFOLD = {
    "two hosts": GET.replace(b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nHost: example.org"),
    "the same host twice": GET.replace(b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nhost: 127.0.0.1"),
    "no host": request("GET", "/v1/filters", Host=None),
    "compressed": request("POST", INSERT, Transfer_Encoding="gzip, chunked") + CHUNKED,
    "chunked twice": request("POST", INSERT, Transfer_Encoding="chunked, chunked") + CHUNKED,
    "compressed in a second header": request("POST", INSERT, transfer_encoding="gzip", Transfer_Encoding="chunked")
    + CHUNKED,
}


@pytest.mark.parametrize("data", TWOFOLD.values(), ids=TWOFOLD)
def test_heads_of_two_meanings(refuses, service, data):
    """Not one Host, or a coding beside chunked: refused, after the answers to the requests before it."""
    refuses(data, 400, "bad_http", closes=True)
    with service.raw() as connection:
        assert connection.ask(GET + data).status == 200
        refusal(connection.answer(), 400, "bad_http")
        assert connection.answer() is None


# Who asks

NEAR = ("localhost", "localhost:8000", "LOCALHOST", "127.0.0.1", "127.1.2.3:1", "[::1]", "[::1]:8000")
FAR = ("example.org", "localhost.example.org", "127.0.0.1.example.org", "localhost@example.org", "example.org:8000",
       "10.0.0.1", "0.0.0.0", "[::2]", "[", "[x]", "a b", "", "localhost:8000@example.org", "example.org#localhost",
       "localhost\\@example.org", "ⅼocalhost".encode().decode("latin-1"))  # fmt: skip


def test_foreign_hosts(refuses, service):
    """A service without tokens is asked as localhost only, for a page of another site may call it by its own name."""
    for host in FAR:
        refuses(unique(asking("foreign"), Host=host), 400, "bad_host")
        refuses(request("GET", "/healthz", Host=host), 400, "bad_host")
    with service.raw() as connection:
        for host in NEAR:
            assert (host, 200) == (host, connection.ask(request("GET", "/v1/filters", Host=host)).status)


@pytest.mark.slow
def test_an_open_service_behind_a_proxy(redis, refuses, service):
    """What a proxy passes on is refused, as anybody may have asked it; the log says so once, a setting allows it."""
    passed = ({"Forwarded": "for=192.0.2.60"}, {"X_Forwarded_For": "192.0.2.60"}, {"X_Real_IP": "192.0.2.60"})
    for headers in passed:
        refuses(unique(asking("passed on"), **headers), 403, "behind_proxy")
        refuses(request("GET", "/healthz", **headers), 403, "behind_proxy")
    (line,) = [line for line in service.log().splitlines() if "proxy" in line]
    assert " ERROR " in line
    assert "add tokens, or trusted_proxies" in line
    assert "127.0.0.1" in line
    for trusted, status in (('["192.0.2.0/24", "127.0.0.1"]', 200), ('["192.0.2.0/24"]', 403)):
        with Service(redis.url, settings=f"trusted_proxies = {trusted}\n") as other, other.raw() as connection:
            for headers in passed:
                assert connection.ask(request("GET", "/healthz", **headers)).status == status
            refusal(connection.ask(request("GET", "/healthz", Host="example.org", **passed[0])), 400, "bad_host")


@pytest.mark.slow
def test_a_service_with_tokens_behind_a_proxy(guarded):
    """It asks for the token, whoever passes it on."""
    with guarded.raw() as connection:
        answer = connection.ask(request("GET", "/v1/filters", X_Forwarded_For="192.0.2.60", **bearer(READER)))
        assert answer.status == 200


@pytest.mark.slow
def test_foreign_origins(refuses, service):
    """A service without tokens answers no page of another site."""
    for origin in ("http://example.org", "null", "http://localhost:1", "https://localhost.example.org", "", "file://",
                   "http://localhost:8000@example.org", "http://[", "localhost:8000"):  # fmt: skip
        refuses(unique(asking("foreign"), Host="localhost:8000", Origin=origin), 403, "foreign_origin")
    with service.raw() as connection:
        own = {"Host": "localhost:8000", "Origin": "http://localhost:8000"}
        assert connection.ask(request("GET", "/v1/filters", **own)).status == 200


WRITER, READER, NARROW = (tokens.new() for _ in range(3))
TOKENS = known("writer", WRITER, "write") + known("reader", READER) + known("narrow", NARROW, "write", ("ring*", "x?"))


@pytest.fixture(scope="module")
def guarded(redis):
    """A service with tokens."""
    with running(redis.url, "--prefix", "guarded", "--log-requests", settings=LIMITS + FILTERS + TOKENS) as service:
        yield service
        assert not [token for token in (WRITER, READER, NARROW) if token in service.log()]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.slow
def test_answers_are_not_kept_nor_guessed(guarded):
    """No JSON is stored by whoever passes it on, or taken for something else, whatever is answered."""
    with guarded.raw() as connection:
        for data in (
            request("GET", "/healthz"),
            request("GET", "/openapi.json"),
            request("GET", "/v1/filters", **bearer(READER)),
            request("GET", "/metrics", **bearer(READER)),
            unique(asking("not kept"), **bearer(WRITER)),
            unique(b"no", **bearer(WRITER)),
            unique(asking("a")),
            request("GET", "/nowhere"),
            b"garbage\r\n\r\n",
        ):
            headers = connection.ask(data).headers
            assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


INTERNALS = re.compile(r"[A-Z]{5,}|sys\.|codec|script|urifilter:|pydantic|Traceback|int_max|@")


@pytest.mark.slow
def test_errors_tell_no_internals(make_server):
    """Errors are in words for who asks: no script's, no key of Redis, nothing of Python's."""
    redis = make_server("redis70")
    with running(redis.url, settings=FILTERS) as service, service.raw() as connection, redis.client() as admin:

        def told(status, code, body, **headers):
            text = refusal(connection.ask(unique(body, **headers)), status, code).json()["error"]
            assert not INTERNALS.search(text), text

        for number in ("5", "6"):
            keyed = {"Idempotency_Key": f"0123456789abcdef/0/{number}"}
            assert connection.ask(unique(asking(number), **keyed)).json()["unique"] == 1
        assert connection.ask(unique(asking("7"), Idempotency_Key="a UUID")).json()["unique"] == 1
        for key in ("0123456789abcdef/0/6", "a UUID"):
            told(409, "refused", asking("other"), Idempotency_Key=key)
        told(409, "refused", asking("5"), Idempotency_Key="0123456789abcdef/0/5")
        told(400, "bad_json", b"\xff")
        told(400, "bad_json", b"1" + b"0" * 5000)
        told(422, "bad_item", b'{"filter_typeid":"news","URI_list":[1e999]}')
        admin.delete("urifilter:{news:0}:today")
        told(503, "slice_lost", asking("a"))
        admin.lpush("urifilter:{news:0}:today", "x")
        told(503, "slice_lost", asking("a"))
        assert "urifilter:{news:0}:today" in service.log()
        admin.delete("urifilter:{news:0}:today", "urifilter:{news:0}:meta")
        assert connection.ask(unique(asking("a"))).json()["unique"] == 1


def test_no_token_or_a_wrong_one(guarded, inserted):
    """401 for whatever is not open to all; a token in a header counts alone, whatever is in the body."""
    before = inserted("guarded")
    wrong = [
        *map(bearer, ("", "wrong", WRITER[:-1], WRITER + "x", WRITER.upper(), f"{WRITER} {WRITER}", "\xff")),
        *({"Authorization": text} for text in ("", "Bearer", WRITER, f"Bearer{WRITER}", f"Basic {WRITER}")),
        {"Authorization": f"Basic {base64.b64encode(f'writer:{WRITER}'.encode()).decode()}"},
    ]
    with guarded.raw() as connection:

        def refused(data):
            answer = refusal(connection.ask(data), 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"

        for headers in ({}, *wrong):
            refused(unique(asking("a"), **headers))
            refused(request("POST", INSERT, b'{"items":["a"]}', **headers))
            refused(request("POST", CONTAINS, b"no JSON", **headers))
            for path in ("/v1/filters", "/v1/filters/news", "/v1/filters/none", "/metrics"):
                refused(request("GET", path, **headers))
        for headers in wrong:
            refused(unique(asking("a", access_token=WRITER), **headers))
        for token in (None, "", "wrong", "\ud800", "\0", WRITER + "\n", READER.encode().hex()):
            refused(unique(asking("a", access_token=token)))
        refused(request("GET", "/openapi.json"))
        for path in ("/healthz", "/readyz", "/", "/docs"):
            assert connection.ask(request("GET", path, Host="example.org")).status == 200
    assert before == inserted("guarded")


def test_a_token_in_the_body(guarded):
    """It works where the body has a field for it, alone or beside the same one in the header."""
    with guarded.raw() as connection:
        assert connection.ask(unique(asking("in the body", access_token=WRITER))).json()["unique"] == 1
        assert connection.ask(unique(asking("in the body", access_token="x"), **bearer(WRITER))).json()["unique"] == 0
        body = dump({"items": ["a"], "access_token": WRITER})
        refusal(connection.ask(request("POST", CONTAINS, body)), 401, "unauthorized")
        refusal(connection.ask(request("POST", CONTAINS, body, **bearer(WRITER))), 422, "bad_request")
        refusal(connection.ask(request("GET", f"/v1/filters?access_token={WRITER}")), 401, "unauthorized")


def test_a_body_without_a_token_is_not_parsed(guarded):
    """401, whatever it is: parsing costs time, and anybody may send it."""
    nested = b'{"filter_typeid":"news","URI_list":[' + b",".join([b"[" * 400 + b"]" * 400] * 100) + b"]"
    wrong = WRITER[:-1].encode()
    with guarded.raw() as connection:
        for body in (
            b"",
            b"no JSON",
            b"[" * BODY,
            nested,
            nested + b',"access_token":"' + wrong + b'"',
            b'{"access_token":"' * 5000,
            b'"access_token":"' + wrong + b'"' * 5000,
            b'{"access_token":["' + WRITER.encode() + b'"]',
            b'{"access_token":"\\',
            b'{"access_token":"\xff"',
            b'{"a":1,"access_token":"\\u12"}',
        ):
            refusal(connection.ask(unique(body)), 401, "unauthorized")


def test_where_a_token_stands_in_a_body(guarded):
    """First, last, between blanks, escaped, or beside others: that of the body itself counts, and of two the last."""
    written = "".join(f"\\u{ord(each):04x}" for each in WRITER)
    begin, items = '{"filter_typeid":"news","URI_list":', '["where it stands"]'
    many = json.dumps([{"access_token": "x"}] * 90)
    with guarded.raw() as connection:

        def status(text):
            return connection.ask(unique(text.encode())).status

        assert status(f'{{"access_token":"{WRITER}","filter_typeid":"news","URI_list":{many}}}') == 200
        assert status(f'{begin}{many},"access_token":"{WRITER}"}}') == 200
        assert status(f'{begin}{items},\r\n"access_token"\t :\n "{WRITER}" }}') == 200
        assert status(f'{begin}{items},"access_token":"{written}"}}') == 200
        assert status(f'{begin}{items},"access_token":"x","access_token":"{WRITER}"}}') == 200
        assert status(f'{begin}{items},"access_token":"{WRITER}","access_token":"x"}}') == 401
        assert status(f'{begin}[{{"access_token":"{WRITER}"}}]}}') == 401
        assert status(f'{begin}["\\"access_token\\":\\"{WRITER}\\""],"access_token":"x"}}') == 401
        assert status(f'{begin}[],"access_token":"{WRITER}"') == 400


def test_no_garbage_is_looked_for_while_a_body_is_parsed():
    """That took four fifths of the time of a body of many lists; once it is there it is looked for as before."""
    body, seen = dump(asking(*[[[]]] * 20_000)), []
    gc.callbacks.append(lambda phase, _: seen.append(phase))
    try:
        asked = requests.parse(body, bodies.OlderItems)
        assert (len(asked.URI_list), seen.count("start") <= 1, gc.isenabled()) == (20_000, True, True)
        with pytest.raises(Refusal):
            requests.parse(body[:-1], bodies.OlderItems)
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()


@pytest.mark.slow
def test_what_a_token_is_not_for(guarded, inserted):
    """403 for a filter that its patterns leave out, there or not, and for writing with a token that may read."""
    before = inserted("guarded")
    items = b'{"items":["a"]}'
    with guarded.raw() as connection:

        def forbidden(data):
            refusal(connection.ask(data), 403, "forbidden")

        for name in ("news", "none", "x", "x12", "Ring"):
            forbidden(unique(asking("a") | {"filter_typeid": name}, **bearer(NARROW)))
            forbidden(unique(asking("a", access_token=NARROW) | {"filter_typeid": name}))
            forbidden(request("POST", f"/v1/filters/{name}/contains", items, **bearer(NARROW)))
            forbidden(request("GET", f"/v1/filters/{name}", **bearer(NARROW)))
        forbidden(request("GET", "/metrics", **bearer(NARROW)))
        forbidden(unique(asking("a"), **bearer(READER)))
        forbidden(unique(asking("a", access_token=READER)))
        for command in ("insert", "forget", "remove"):
            forbidden(request("POST", f"/v1/filters/news/{command}", items, **bearer(READER)))
        assert connection.ask(request("POST", CONTAINS, items, **bearer(READER))).json()["ages"] == [0]
        assert connection.ask(request("POST", "/v1/filters/ring/insert", items, **bearer(NARROW))).json()["ages"] == [0]
        refusal(connection.ask(request("GET", "/v1/filters/x1", **bearer(NARROW))), 404, "filter_not_found")
        for token, names in ((NARROW, ["ring"]), (READER, ["news", "ring"])):
            assert connection.ask(request("GET", "/v1/filters", **bearer(token))).json() == {"filters": names}
        for scheme in ("bearer", "BEARER", "Bearer "):
            assert connection.ask(request("GET", "/metrics", Authorization=f"{scheme} {READER}")).status == 200
    assert before == inserted("guarded")


# When Redis is slow or away


def unavailable(answer):
    """Check that an answer says that there is none now, and when to ask again."""
    refusal(answer, 503, answer.json()["error_code"])
    assert answer.json()["error_code"] in {"server_unavailable", "answer_lost"}
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.slow
def test_requests_that_wait_too_long(make_server):
    """429 with Retry-After; those under way are answered, and after them others; each token has its own limit."""
    redis = make_server()
    limits = "[limits]\nrequests = 1\nwait = 0.2\n"
    with running(redis.url, settings=limits + FILTERS + TOKENS) as service, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(service.raw()) for _ in range(2)]
        for connection in connections:  # the filter is open
            assert connection.ask(unique(asking("a"), **bearer(WRITER))).status == 200
        redis.suspend()
        for number, connection in enumerate(connections):
            connection.send(unique(asking(f"slow {number}"), **bearer(WRITER)))
        first, *_ = select.select([connection._socket for connection in connections], [], [], PATIENCE)
        redis.resume()
        refused, waits = sorted(connections, key=lambda connection: connection._socket not in first)
        answer = refusal(refused.answer(), 429, "too_many_requests")
        assert int(answer.headers["retry-after"]) >= 1
        assert waits.answer().json()["unique"] == 1
        assert refused.ask(unique(asking("b"), **bearer(WRITER))).json()["unique"] == 1


@pytest.mark.slow
def test_many_requests_at_once(redis):
    """A token's requests wait for each other: as many as come are answered, however few may run at once."""
    limits = "[limits]\nrequests = 2\nwait = 60\n"
    with running(redis.url, "--prefix", "many", settings=limits + FILTERS) as service, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(service.raw()) for _ in range(150)]
        for number, connection in enumerate(connections):
            connection.send(unique(asking(f"many {number}")))
        assert [connection.answer().json().get("unique") for connection in connections] == [1] * 150


@pytest.mark.slow
def test_no_file_descriptors(redis):
    """When they run out the log says so, and with what to do; once there are some it answers as before."""
    with running(redis.url) as service:
        used = len(os.listdir(f"/proc/{service.process.pid}/fd"))
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(service.raw())
            wait_until(lambda: "out of file descriptors" in service.log(), "the log does not say so")
        (line,) = [line for line in service.log().splitlines() if "out of file descriptors" in line]
        assert " ERROR " in line
        assert f"{used + 20} (ulimit -n, LimitNOFILE)" in line

        def answers():
            with service.raw() as connection, contextlib.suppress(ConnectionError):
                return connection.ask(request("GET", "/healthz")) is not None

        wait_until(answers, "it does not answer again")


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_redis_is_killed(make_server):
    """503 with Retry-After, whatever is asked; when it is there again all is answered, without a restart."""
    redis = make_server(appendonly="yes", appendfsync="always")
    with running(redis.url, settings=FILTERS) as service, service.raw() as connection:
        assert connection.ask(unique(asking("a"))).json()["unique"] == 1
        redis.kill()
        with contextlib.ExitStack() as stack:
            asked = []
            for data in (
                unique(asking("b"), Idempotency_Key="b"),
                request("POST", CONTAINS, b'{"items":["a"]}'),
                request("GET", "/v1/filters"),
                request("GET", "/v1/filters/unopened"),  # the state of an open one may be known from a moment ago
                request("GET", "/readyz"),
            ):
                asked.append(stack.enter_context(service.raw()))
                asked[-1].send(data)
            for each in asked:
                unavailable(each.answer())
        assert connection.ask(request("GET", "/healthz")).json() == {"status": "ok"}
        assert connection.ask(request("GET", "/metrics")).status == 200
        glance = request("GET", "/v1/overview")
        answer = wait_until(lambda: (found := connection.ask(glance)).status == 503 and found, "it makes something up")
        refusal(answer, 503, "server_unavailable")
        refusal(connection.ask(unique(b"no")), 400, "bad_json")
        redis.start()
        wait_until(lambda: connection.ask(request("GET", "/readyz")).status == 200, "the service does not recover")
        answer = connection.ask(unique(asking("a", "b", "c"), Idempotency_Key="b2"))
        assert answer.json()["URI_list_unique"] == ["b", "c"]


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_redis_stops_while_it_is_asked(make_server):
    """503: the answer is lost, or nothing was inserted; under its key the request may be repeated when it is back."""
    redis = make_server(appendonly="yes", appendfsync="always")
    with running(redis.url, settings=FILTERS) as service, service.raw() as connection:
        assert connection.ask(unique(asking("a"))).json()["unique"] == 1
        asked = unique(asking("a", "b"), Idempotency_Key="0123456789abcdef/0/1")
        redis.suspend()
        unavailable(connection.ask(asked))
        redis.resume()
        answer = wait_until(
            lambda: (found := connection.ask(asked)).status == 200 and found, "the service does not recover"
        )
        assert answer.json()["URI_list_unique"] == ["b"]
        assert connection.ask(unique(asking("a", "b"))).json()["unique"] == 0
