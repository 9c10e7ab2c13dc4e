"""Actions on whole filters over HTTP and by the SDK: who may do them, lost replies, and the audit log."""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import timedelta

import pytest
from support.proxy import Fault, HttpProxy, first
from support.servers import wait_until
from support.service import Service, ask, known, request

from urifilter_redis.errors import FilterAPIError
from urifilter_redis.http_api import FILTERS_PATH, OPERATIONS
from urifilter_redis.sdk import AsyncFilterAPIClient, FilterAPIClient
from urifilter_redis.service import tokens
from urifilter_redis.service.logs import shape_of

pytestmark = pytest.mark.slow

SECRETS = {name: tokens.new() for name in ("admin", "writer", "reader", "other")}
ADMIN = SECRETS["admin"]
RING = {"capacity": 1000, "retention": "ring", "slices": 3, "period": "1d", "error_rate": 1e-8}
FOREVER = {"capacity": 1000, "error_rate": 1e-8, "seed": 1}
UID = "0" * 16
#: The actions on whole filters, each by a POST.
ACTIONS = [name for name, each in OPERATIONS.items() if (each.tag, each.method) == ("admin", "POST")]

BODIES = {
    "create": FOREVER,
    "rotate": {"expected_epoch": 0},
    "checkpoint": {},
    "restore": {},
    "acknowledge": {},
    "union": {"sources": ["more"]},
    "drop": {"confirm": "news", "uid": UID},
}


@pytest.fixture(scope="module")
def guarded(redis, tmp_path_factory):
    """A service with an archive, a filter of its own, and a token of each kind."""
    settings = "[filters.mine]\ncapacity = 1000\n" + known("other", SECRETS["other"], "admin", ["other*"])
    for who, access in (("admin", "admin"), ("writer", "write"), ("reader", "read")):
        settings += known(who, SECRETS[who], access)
    archive = (tmp_path_factory.mktemp("archive")).as_uri()
    options = ("--log-format", "json", "--archive", archive, "--workers", "2")
    with Service(redis.url, *options, settings=settings) as service:
        yield service
        assert "Traceback" not in service.log()
        assert not any(secret in service.log() for secret in SECRETS.values())


@pytest.fixture
def name(request):
    """A filter's name of this test's own."""
    return request.node.name.replace("[", ".").replace("]", "")[:64]


@pytest.fixture(params=[FilterAPIClient, AsyncFilterAPIClient])
def api(request, guarded):
    """Call a method of a client with the token ``admin``; its address can be another."""

    def call(method, *given, url=guarded.url, **named):
        async def calling():
            client = request.param(url, ADMIN)
            try:
                found = getattr(client, method)(*given, **named)
                return await found if inspect.isawaitable(found) else found
            finally:
                closed = client.close()
                if inspect.isawaitable(closed):
                    await closed

        return asyncio.run(calling())

    return call


def act(service, name, action, body, who="admin"):
    return ask(service, "POST", f"{FILTERS_PATH}/{name}/{action}", body, SECRETS.get(who))


def audited(service):
    """The lines of the audit log."""
    lines = [json.loads(line) for line in service.log().splitlines() if line.startswith("{")]
    return [
        {field: each[field] for field in ("token", "client", "filter", "action", "result")}
        for each in lines
        if each["logger"] == "urifilter_redis.service.audit"
    ]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(("who", "status"), [("writer", 403), ("reader", 403), ("other", 403), ("nobody", 401)])
def test_who_may_not(guarded, name, action, who, status):
    """Only tokens with access admin, and for this filter, may act; each attempt is in the audit log.

    The name of a filter that there is not is no text for a log.
    """
    answer = act(guarded, name, action, BODIES[action], who)
    assert answer.status == status
    token = who if who in SECRETS else ""
    line = {"token": token, "client": "127.0.0.1", "filter": shape_of(name), "action": action}
    assert line | {"result": answer.json()["error_code"]} in audited(guarded)


def test_a_service_without_tokens(service):
    """Nobody may act there: who is to be named in the audit log?"""
    for action in ACTIONS:
        assert ask(service, "POST", f"{FILTERS_PATH}/news/{action}", BODIES[action]).status == 403


def test_a_life(guarded, redis, api, name):
    """A filter is made, rotated, written, lost, brought back, merged and dropped; the audit log has each action."""
    uid = api("create", name, **RING | {"period": timedelta(days=1)}, seed=1)
    assert api("create", name, **RING, seed=1) == uid
    api("insert_many", name, ["a"])
    assert api("rotate", name, dry_run=True).epoch == 1
    assert (api("rotate", name).epoch, api("rotate", name).epoch) == (1, 2)
    assert api("ages", name, ["a"]) == [3]
    assert api("checkpoint", name).shards == 1
    assert api("checkpoint", name).shards == 0
    redis.ask("flushall")
    assert api("restore", name) == uid
    assert api("ages", name, ["a"]) == [3]
    assert api("acknowledge", name) == 0  # a restore by hand acknowledges itself
    more = f"{name}.more"
    other = api("create", more, **RING, seed=1)
    api("insert_many", more, ["b"])
    assert api("union", name, more) == 1
    assert api("contains_many", name, ["a", "b"]) == [True, True]
    assert (api("drop", more, other), api("drop", more, other)) == (True, False)
    assert api("drop", name, uid, keep_archive=True)
    assert api("restore", name) == uid
    assert api("drop", name, uid)
    lines = [(each["action"], each["result"]) for each in audited(guarded) if each["filter"] == name]
    assert set(lines) == {(action, "ok") for action in ACTIONS}
    assert lines.count(("rotate", "ok")) == 5  # a dry run before each of two, and one by itself


def test_a_union_over_capacity(api, name):
    """It is told with the error rate that it would have, merges nothing, and is done on a yes."""
    more = f"{name}.more"
    for each, items in ((name, range(100)), (more, range(100, 250))):
        api("create", each, capacity=150, seed=1)
        api("insert_many", each, list(items))
    with pytest.raises(FilterAPIError, match="it would hold about 2[0-9]{2} items") as caught:
        api("union", name, more)
    assert (caught.value.status, caught.value.error_code) == (409, "over_capacity")
    assert not any(api("contains_many", name, list(range(200, 250))))
    assert api("union", name, more, over_capacity=True) == pytest.approx(150, rel=0.1)
    assert all(api("contains_many", name, list(range(250))))


def test_a_union_of_nothing(guarded, redis, name):
    """Whatever is wrong with a source, its error has no address of Redis."""
    other, wrong = f"{name}.other", f"{name}.wrong"
    for each, settings in ((name, FOREVER), (other, FOREVER), (wrong, FOREVER | {"capacity": 2000})):
        assert act(guarded, each, "create", settings).status == 200
    with redis.client() as admin:
        admin.delete(next(key for key in admin.scan_iter(f"*{other}*") if admin.type(key) == b"string"))
    for source, code in (("missing", "filter_not_found"), (wrong, "config_mismatch"), (other, "slice_lost")):
        answer = act(guarded, name, "union", {"sources": [source]})
        assert answer.json()["error_code"] == code, answer.json()
        assert "redis:" not in answer.body.decode()


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DUPLICATE, Fault.DELAY])
def test_a_reply_is_lost(guarded, api, name, fault):
    """The SDK repeats the request, or an old copy arrives late: it is as if it had been done once."""

    def lossy(method, *given, **named):
        faults = first(fault) if method != "rotate" else first(Fault.PASS, fault)
        with HttpProxy(guarded.port, faults) as proxy:
            found = api(method, *given, url=proxy.url, **named)
            proxy.release()
            return found

    uid = lossy("create", name, **RING, seed=1)
    assert lossy("rotate", name).epoch == 1
    assert api("rotate", name, dry_run=True).epoch == 2
    assert lossy("checkpoint", name).number >= 1
    assert lossy("restore", name) == uid
    lossy("drop", name, uid)
    anew = api("create", name, **RING, seed=1)
    assert anew != uid
    assert api("rotate", name, dry_run=True).epoch == 1
    assert api("drop", name, anew)


def test_a_repeat_while_the_action_is_under_way(service_for_admins, any_server, name):
    """It waits for that action, and gets its answer."""
    running, secret = service_for_admins
    path, bearer = f"{FILTERS_PATH}/{name}", f"Bearer {secret}"
    assert ask(running, "POST", f"{path}/create", RING, secret).status == 200
    wish = request("POST", f"{path}/rotate", b'{"expected_epoch": 0}', Authorization=bearer)
    with running.raw() as one, running.raw() as two:
        any_server.ask("execute_command", "CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            for each in (one, two):
                each.send(wish)
            for _ in range(2):  # once that is answered, both have been read
                ask(running, "GET", "/healthz")
        finally:
            any_server.ask("execute_command", "CLIENT", "UNPAUSE")
        assert [each.answer().json()["shards"] for each in (one, two)] == [1, 1]


def test_put_and_delete(guarded, name):
    """PUT makes a filter once, and refuses other settings; DELETE drops it by the rules of ``drop``."""
    path = f"{FILTERS_PATH}/{name}"
    made = [ask(guarded, "PUT", path, FOREVER, ADMIN) for _ in range(2)]
    assert [each.status for each in made] == [200, 200]
    uid = made[0].json()["uid"]
    assert made[1].json() == {"filter": name, "uid": uid} == act(guarded, name, "create", FOREVER).json()
    other = ask(guarded, "PUT", path, FOREVER | {"capacity": 2000}, ADMIN)
    assert (other.status, other.json()["error_code"]) == (409, "config_mismatch")
    for query in ("", f"?uid={uid}", f"?confirm=x&uid={uid}", f"?confirm={name}&uid={uid}&more=1",
                  f"?confirm={name}&uid={uid}&keep_archive=perhaps"):  # fmt: skip
        refused = ask(guarded, "DELETE", path + query, token=ADMIN)
        assert (refused.status, refused.json()["error_code"]) == (422, "bad_request"), query
    gone = f"{path}?confirm={name}&uid={UID}"
    assert ask(guarded, "DELETE", gone, token=SECRETS["writer"]).status == 403
    assert ask(guarded, "DELETE", gone, token=ADMIN).json() == {"filter": name, "dropped": False}
    dropped = [ask(guarded, "DELETE", f"{path}?confirm={name}&uid={uid}&keep_archive=false", token=ADMIN) for _ in "12"]
    assert [each.json() for each in dropped] == [{"filter": name, "dropped": each} for each in (True, False)]
    assert ask(guarded, "GET", path, token=ADMIN).status == 404
    lines = [(each["action"], each["result"]) for each in audited(guarded) if each["filter"] == name]
    assert lines.count(("create", "ok")) == 3
    assert lines.count(("drop", "ok")) == 3
    assert {("create", "config_mismatch"), ("drop", "bad_request"), ("drop", "forbidden")} < set(lines)


@pytest.mark.parametrize(("path", "name_of"), [("filters", str), ("overview", lambda row: row["name"])])
def test_pages_of_lists(guarded, name, path, name_of):
    """A list has as many filters as are asked for, and says where to go on; the token's filters alone are counted."""
    made = [f"other.{path}.{letter}" for letter in "abc"]
    for each in made:
        act(guarded, each, "create", FOREVER)

    def listed(query):
        answer = ask(guarded, "GET", f"/v1/{path}?{query}", token=SECRETS["other"]).json()
        return [name_of(each) for each in answer["filters"]], answer.get("next")

    before = f"other.{path}"
    wait_until(lambda: listed(f"after={before}")[0][:3] == made, "the filters are not listed")
    assert listed(f"limit=2&after={before}") == (made[:2], made[1])
    rest, more = listed(f"limit=1000&after={made[1]}")
    assert (rest[0], more) == (made[2], None)
    for query in ("limit=0", "limit=1001", "limit=x", "after=a%20b", "page=2"):
        refused = ask(guarded, "GET", f"/v1/{path}?{query}", token=ADMIN)
        assert (refused.status, refused.json()["error_code"]) == (422, "bad_request"), query


def test_the_sdk_reads_all_pages(guarded, api, monkeypatch):
    """The names come in several answers if they are many."""
    names = [f"paged.{number}" for number in range(3)]
    for each in names:
        act(guarded, each, "create", FOREVER)
    monkeypatch.setattr("urifilter_redis.sdk.api.MOST_LISTED", 2)
    found = api("filters")
    assert set(names) <= set(found)
    assert found == sorted(set(found))


def test_a_drop_of_another(api, name):
    """A drop removes the filter of the uid that it names, and no other of the name."""
    uid = api("create", name, **FOREVER)
    assert api("drop", name, uid)
    anew = api("create", name, **FOREVER)
    assert not api("drop", name, uid)
    assert not api("drop", name, UID)
    assert api("drop", name, anew)


def test_a_rotation_of_the_past(api, name):
    """Of all who rotate from an epoch one does; the others are told the epoch that is reached."""
    uid = api("create", name, **RING)
    found = [api("rotate", name, 0) for _ in range(3)]
    assert [(each.epoch, each.shards) for each in found] == [(1, 1), (1, 0), (1, 0)]
    with pytest.raises(FilterAPIError, match="epoch"):
        api("rotate", name, 7)
    assert api("drop", name, uid)


@pytest.mark.parametrize(
    ("action", "body", "code"),
    [
        ("create", {"capacity": -1}, "bad_request"),
        ("create", {"capacity": 1000, "more": 1}, "bad_request"),
        ("create", FOREVER | {"capacity": 2000}, "config_mismatch"),
        ("create", {"capacity": 10**12}, "bad_request"),
        ("rotate", {}, "bad_request"),
        ("rotate", {"expected_epoch": 0}, "refused"),
        ("union", {"sources": []}, "bad_request"),
        ("union", {"sources": ["a b"]}, "bad_request"),
        ("union", {"sources": ["test_what_is_wrong"]}, "bad_request"),
        ("union", {"sources": ["missing"]}, "filter_not_found"),
        ("drop", {"confirm": "news", "uid": UID}, "bad_request"),
        ("drop", {"confirm": "test_what_is_wrong"}, "bad_request"),
    ],
)
def test_what_is_wrong(guarded, action, body, code):
    """A wrong wish is refused, and the audit log says how."""
    name = "test_what_is_wrong"
    assert act(guarded, name, "create", FOREVER).status == 200
    answer = act(guarded, name, action, body)
    assert answer.json()["error_code"] == code, answer.json()
    assert {"token": "admin", "client": "127.0.0.1", "filter": name, "action": action, "result": code} in audited(
        guarded
    )


def test_what_cannot_be_done(guarded, redis, service_for_admins, name):
    """Too large for Redis; a filter of the settings, which would be there again; sources of others; no archive."""
    with redis.client() as admin:
        admin.config_set("maxmemory", "50mb")
        try:
            answer = act(guarded, name, "create", {"capacity": 10**8, "large": True})
        finally:
            admin.config_set("maxmemory", 0)
    assert (answer.status, answer.json()["error_code"]) == (409, "refused")
    answer = act(guarded, "mine", "drop", {"confirm": "mine", "uid": UID})
    assert (answer.status, "settings" in answer.json()["error"]) == (409, True)
    answer = act(guarded, "other1", "union", {"sources": ["news"]}, "other")
    assert (answer.status, "news" in answer.json()["error"]) == (403, True)
    running, secret = service_for_admins
    for action in ("checkpoint", "restore"):
        answer = ask(running, "POST", f"{FILTERS_PATH}/{name}/{action}", {}, secret)
        assert (answer.status, "no archive" in answer.json()["error"]) == (409, True)
