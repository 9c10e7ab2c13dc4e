"""``urifilter import``: every item of a set or file gets into the filter, also after an interruption."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli import run, start
from support.killer import Killer
from support.servers import wait_until
from support.users import User

from urifilter_redis import UriFilter, list_filters
from urifilter_redis.errors import ServerUnavailable, UriFilterError
from urifilter_redis.flows import items as item_flows
from urifilter_redis.importing import importer, sources
from urifilter_redis.importing.importer import Import, Receiver
from urifilter_redis.importing.sources import SetSource

pytestmark = pytest.mark.slow

KEY = "spider:dupefilter"
META = "urifilter:{news:0}:meta"


def fingerprints(count: int, start: int = 0) -> list[str]:
    return [hashlib.sha1(b"https://example.com/%d" % number).hexdigest() for number in range(start, start + count)]


@pytest.fixture
def imported(there):
    """Run ``urifilter import news`` with more arguments; return its JSON and stderr."""

    def do(*arguments, **options):
        out, err = run("import", "news", "--json", *arguments, **options)
        return json.loads(out or "null"), err

    return do


@pytest.fixture
def small(monkeypatch):
    """A set is read by some hundred members, and each window is noted."""
    monkeypatch.setattr(sources, "MEMBERS_A_SCAN", 300)
    monkeypatch.setattr(importer, "WINDOWS_A_NOTE", 1)


def seen(news, items) -> int:
    return sum(news.contains_many(items))


def begin(news, members, windows: int | None = None, after: Callable[[int], object] = lambda _: None) -> Import:
    """Import some windows, and stop there; None: all. After each window do something, which is told its number."""
    moving = Import(news, members, print)
    for number, window in enumerate(moving.windows(), 1):
        moving.insert(window)
        after(number)
        if number == windows:
            return moving
    moving.finish()
    return moving


def begin_set(news, server, *windows, **more) -> Import:
    """Do that with the set of a server."""
    with SetSource(KEY.encode(), redis=server.url) as members:
        return begin(news, members, *windows, **more)


@pytest.fixture
def receiver(any_server):
    """A filter for imports, in which none of ten thousands of members is found by chance."""
    with Receiver.create("news", redis=any_server.url, capacity=100_000, error_rate=1e-9) as news:
        yield news


@pytest.mark.quick
def test_set(any_server, imported):
    """All members are new once; the new filter has room for twice as many; the summary is one line on stderr."""
    members = fingerprints(6000)
    any_server.ask("sadd", KEY, *members)
    found, _ = imported("--set", KEY, "--error-rate", 1e-9)
    assert (found["items"], found["new"], found["seen"], found["bad"]) == (6000, 6000, 0, 0)
    out, err = run("import", "news", "--set", KEY)
    assert (out, err) == (b"", "import: 6,000 members: 0 new, 6,000 seen before (filter news)\n")
    with UriFilter.open("news") as news:
        assert seen(news, members) == news.inserted() == 6000
        assert (news.config.capacity, news.config.error_rate) == (12_000, 1e-9)


@pytest.mark.parametrize(
    ("members", "more", "items"),
    [
        (fingerprints(50), (), "function"),
        ([f"https://example.com/{number}" for number in range(50)], (), "url"),
        ([*fingerprints(10), "https://example.com/"], (), None),
        (fingerprints(50), ("--items", "fingerprint"), "fingerprint"),
    ],
    ids=["of scrapy-redis", "addresses", "both", "said"],
)
def test_what_the_members_are(any_server, imported, members, more, items):
    """A new filter notes which URIFILTER_KEY its items have, so that a crawl with another is refused."""
    any_server.ask("sadd", KEY, *members)
    imported("--set", KEY, *more)
    with UriFilter.open("news") as news:
        assert news.config.items == items


def test_sorted_set_of_another_server(any_server, other_server, imported):
    """``--from`` names the set's server; of a sorted set the members are taken, not the scores."""
    other_server.ask("zadd", "queue", {"https://example.com/a": 1, "https://example.com/b": 2.5})
    found, _ = imported("--set", "queue", "--from", other_server.url)
    assert (found["new"], found["source"]) == (2, [other_server.url, "queue"])
    with UriFilter.open("news") as news:
        assert news.contains_many(["https://example.com/a", "https://example.com/b"]) == [True, True]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("PING",), "there is no key 'there'"),
        (
            ("RPUSH", "there", "a"),
            "is of type list, and only sets and sorted sets are read: pipe its elements: redis-cli",
        ),
        (("SET", "there", "a"), "is of type string"),
        (("HSET", "there", "a", "b"), "HKEYS"),
    ],
)
def test_key_that_is_no_set(any_server, imported, command, words):
    """The message names the type and says what to do; no filter is made."""
    any_server.ask("execute_command", *command)
    _, err = imported("--set", "there", code=2)
    assert words in json.loads(err)["error"]
    assert list_filters() == []


def test_advice_for_a_list_can_be_run(any_server, admin, imported, monkeypatch):
    """The advised command reads the list of the named server, whatever the key's characters."""
    if shutil.which("redis-cli") is None:
        pytest.skip("redis-cli is missing: apt-get install redis-tools")
    monkeypatch.delenv("URIFILTER_REDIS_URL")
    UriFilter.create("news", redis=any_server.url, capacity=1000).close()
    for key in ("it's a; list", b"\xff'list"):
        admin.rpush(key, "https://example.com/")
        _, err = imported("--set", os.fsdecode(key), "--redis", any_server.url, code=2)
        advised = json.loads(err)["error"].partition("pipe its elements: ")[2]
        reading = advised.removesuffix(" | urifilter import NAME")
        assert reading != advised
        assert subprocess.check_output(["bash", "-c", reading], text=True) == "https://example.com/\n"


def test_digests(any_server, imported):
    """MD5 digests, raw and as hex digits, are those of the filter: ``check`` finds the URLs. Others are named."""
    urls = [b"https://example.com/%d" % number for number in range(40)]
    raw, text = ([hashlib.md5(url).digest() for url in urls[:20]], [hashlib.md5(url).hexdigest() for url in urls[20:]])
    any_server.ask("sadd", "digests", *raw, *text, "https://example.com/odd", "g" * 32)
    any_server.ask("sadd", "others", *fingerprints(5))
    _, err = imported("--set", "digests", "--digests", code=2)
    assert "say --hash md5" in err
    found, err = imported("--set", "digests", "--digests", "--hash", "md5", code=2)
    assert (found["new"], found["bad"]) == (40, 2)
    assert "'https://example.com/odd' of 23 bytes is left out: a digest is 32 hex digits, or 16 bytes" in err
    out, _ = run("check", "--filter", "news", given=b"\n".join(urls) + b"\n")
    assert out == b"".join(b"seen\t%s\n" % url for url in urls)
    _, err = imported("--set", "others", "--digests", code=2)
    assert "of 40 bytes is no digest" in err


def test_lines(imported, tmp_path):
    """Lines of files and of stdin are items as for ``add``; without --expect a new filter grows."""
    (tmp_path / "urls").write_bytes(
        b"\xef\xbb\xbfhttps://example.com/a\r\nhttps://example.com/b\nhttps://example.com/a"
    )
    found, _ = imported(tmp_path / "urls", "-", given=b"https://example.com/c\n")
    assert (found["items"], found["new"], found["seen"]) == (4, 3, 1)
    with UriFilter.open("news") as news:
        assert news.contains_many(["https://example.com/a", "https://example.com/c"]) == [True, True]
        assert news.config.retention == "growing"
    found, _ = imported(tmp_path / "urls", tmp_path / "missing", code=2)
    assert (found["items"], found["bad"]) == (3, 1)


def test_lines_of_digests(imported):
    """In a line 16 characters are no digest: they may be any text. Only the first bad lines are named."""
    lines = [hashlib.md5(b"https://example.com/").hexdigest().encode(), *(b"https://a.b/%04d" % n for n in range(30))]
    found, err = imported("--digests", "--hash", "md5", given=b"\n".join(lines), code=2)
    assert (found["items"], found["bad"], err.count("is left out")) == (1, 30, 10)
    assert "line 'https://a.b/0000' of 16 bytes is left out: a digest is 32 hex digits" in err
    with UriFilter.open("news") as news:
        assert "https://example.com/" in news


@pytest.mark.parametrize(
    ("settings", "refused", "done"),
    [
        ({"hash": "md5"}, {"--hash blake2b": "has the hash md5"}, ""),
        ({"hash": "md5", "normalize": "loose"}, {"": "--normalize loose"}, "--normalize loose"),
        (
            {"seed": 7},
            {"": "say --hash and --seed", "--hash md5": "has the hash mmh3", "--hash mmh3 --seed 8": "another seed"},
            "--hash mmh3 --seed 7",
        ),
    ],
)
def test_digests_of_another_hash(imported, settings, refused, done):
    """Digests go into an existing filter only if they are those of its items, as far as the command line says."""
    digest = hashlib.md5(b"https://example.com/").hexdigest().encode()
    with UriFilter.create("news", capacity=1000, **settings) as news:
        for options, words in refused.items():
            _, err = imported("-q", "--digests", *options.split(), given=digest, code=2)
            assert words in json.loads(err)["error"]
        assert news.inserted() == 0
        found, err = imported("--digests", *done.split(), given=digest)
        assert (found["new"], err) == (1, "")


def test_mistake_makes_no_filter(admin, imported, tmp_path):
    """Files that are all missing, or items that are no digests, end the command before it makes a filter."""
    (tmp_path / "urls").write_text("https://example.com/a\n")
    _, err = imported(tmp_path / "missing", tmp_path / "gone", code=2)
    assert err.count("No such file") == 2
    assert "nothing could be read, so filter 'news' was not made" in err
    _, err = imported("--digests", "--hash", "md5", tmp_path / "urls", code=2)
    assert "is no digest" in err
    admin.sadd(KEY, *fingerprints(5))
    _, err = imported("--digests", "--hash", "md5", "--set", KEY, code=2)
    assert "is no digest" in err
    assert admin.keys("urifilter*") == []
    found, err = imported(tmp_path / "missing", tmp_path / "urls", code=2)
    assert (found["new"], found["bad"], err.count("No such file")) == (1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", KEY, "urls.txt"), "--set reads a set, and files were named"),
        (("--from", "redis://localhost", "urls.txt"), "--from is the server of --set KEY"),
        (("--retention", "ring", "--slices", "3", "--period", "1d", "-"), "--expect is missing"),
    ],
)
def test_options_that_do_not_go_together(imported, arguments, words):
    """The message says which option is missing, or is too many."""
    _, err = imported(*arguments, code=2)
    assert words in err


def test_existing_filter(any_server, imported):
    """Its own settings count, and too little room is said before the import begins."""
    any_server.ask("sadd", KEY, *fingerprints(500))
    UriFilter.create("news", capacity=400, error_rate=1e-6).close()
    found, err = imported("--set", KEY, "--layout", "classic", "--expect", "1k")
    assert found["items"] == 500
    assert found["over_capacity"]
    assert "filter news exists: its own settings count" in err
    assert "has room for 400 more items, and 500 are expected" in err
    assert "import: filter news is over its capacity: 500 of 400; it goes on working" in err


def test_set_larger_than_expected(any_server, imported):
    """--expect does not hide the number of members: too little room is said, before and at the end."""
    any_server.ask("sadd", KEY, *fingerprints(500))
    found, err = imported("--set", KEY, "--expect", 100)
    assert "has room for 100 more items, and 500 are expected" in err
    assert "over its capacity" in err
    assert found["over_capacity"]
    found, err = imported("--set", KEY, "-q")
    assert (found["over_capacity"], err) == (True, "")


def test_pipe_larger_than_expected(imported):
    """Nothing is known of a pipe before it has ended; the notice comes then."""
    _, err = imported("--expect", 100, given="\n".join(fingerprints(300)).encode())
    assert re.fullmatch(r"import: filter news is over its capacity: \d+ of 100; .*\n", err)


def test_ring_has_room_for_all_of_them_in_one_period(any_server, imported):
    """All items come in the first period, and a new ring is made for that."""
    any_server.ask("sadd", KEY, *fingerprints(3000))
    _, err = imported("--set", KEY, "--retention", "ring", "--slices", 30, "--period", "1d")
    assert err == ""
    with UriFilter.open("news") as news:
        assert not news.info().over_capacity


def test_rehashing_set(any_server, admin, receiver, small):
    """Members that the set has throughout are all inserted, though it grows and shrinks while it is read."""
    members, others = fingerprints(5000), fingerprints(40_000, start=5000)
    admin.sadd(KEY, *members)

    def change(number):
        some = others[(number - 1) * 2000 : number * 2000]
        if some:
            admin.sadd(KEY, *some)
        if number > 10:
            admin.srem(KEY, *others[(number - 11) * 4000 : (number - 10) * 4000] or ["none"])

    begin_set(receiver, any_server, after=change)
    assert seen(receiver, members) == 5000


def test_interrupted_import_goes_on(any_server, receiver, small, imported):
    """The same command reads the remaining members only; its counts are those of both runs."""
    any_server.ask("sadd", KEY, *fingerprints(3000))
    done = begin_set(receiver, any_server, 4).counts.items
    assert 1200 <= done < 1300
    _, err = run("import", "news", "--set", KEY)
    assert err == (
        f"import: goes on after {done:,} members of an earlier run (--restart begins anew)\n"
        "import: 3,000 members: 3,000 new, 0 seen before (filter news)\n"
    )
    assert seen(receiver, fingerprints(3000)) == 3000
    begin_set(receiver, any_server, 4)
    found, _ = imported("--set", KEY, "--restart")
    assert (found["items"], found["resumed"]) == (3000, 0)


def _restored(server, news):
    server.ask("flushall")
    server.ask("sadd", KEY, *fingerprints(3000))


def _replaced(server, news):
    """Another set of the same size comes in its place; half of its members are those of the old one."""
    server.ask("delete", KEY)
    server.ask("sadd", KEY, *fingerprints(1500), *fingerprints(1500, start=10_000))


def _restarted(server, news):
    server.kill()
    server.start()


#: What may happen between two imports, and what the second one says.
HARM = {
    "dropped": (lambda _, news: news.drop(), "dropped and created anew"),
    "restored": (_restored, "restored from its archive"),
    "fewer items": (lambda server, _: server.ask("hset", META, "inserted", 500), "fewer items"),
    "more members": (lambda server, _: server.ask("sadd", KEY, "another"), "source of the members has changed"),
    "replaced": (_replaced, "source of the members has changed"),
    "restarted": (_restarted, "server was restarted"),
}


@pytest.mark.parametrize("name", HARM)
def test_note_that_does_not_count(make_server, folder, small, name):
    """In doubt the import begins anew and says why; every member is in the filter."""
    harm, reason = HARM[name]
    server = make_server(appendonly="yes", appendfsync="always")
    where = {"redis": server.url, "archive": folder}
    server.ask("sadd", KEY, *fingerprints(3000))
    with Receiver.create("news", capacity=10_000, error_rate=1e-9, **where) as news:
        news.insert_many(fingerprints(2000))
        news.checkpoint()
        begin_set(news, server, 7)
        harm(server, news)
    with Receiver.create("news", capacity=10_000, error_rate=1e-9, **where) as news:
        moving = begin_set(news, server)
        assert reason in moving.begun_anew
        assert moving.resumed == 0
        assert seen(news, server.ask("smembers", KEY)) == server.ask("scard", KEY)


def test_replaced_sorted_set(any_server, admin, receiver, small):
    """A sorted set that was replaced is read from its beginning; one that was not, with a score of 0, goes on."""
    admin.zadd(KEY, dict.fromkeys(fingerprints(1000), 0))
    with SetSource(KEY.encode(), redis=any_server.url) as members:
        begin(receiver, members, 2)
        assert Import(receiver, members, print).resumed > 0
    admin.delete(KEY)
    admin.zadd(KEY, dict.fromkeys(fingerprints(1000, start=1000), 0))
    assert begin_set(receiver, any_server).begun_anew == "the source of the members has changed"
    assert seen(receiver, fingerprints(1000, start=1000)) == 1000


def test_sample_is_spread_over_the_part_that_was_read():
    """Members of the first and of the last window are equally likely; long ones are left out."""
    place = sources.SetPlace().after([], "1")
    assert (place.cursor, place.sampled()) == ("1", [])
    for number in range(40):
        place = place.after([b"%d" % number] * 100, str(number))
    assert len(place.sampled()) > 15
    assert place.read == 4000
    place = place.after([b"long" * 1000] * 1_000_000, "0")
    assert len(place.sampled()) < 10


def test_ring_whose_first_items_have_expired(any_server, small):
    """The note counts until the ring has turned so often that items of the first run are gone."""
    ring = {"retention": "ring", "slices": 3, "period": "1d"}
    any_server.ask("sadd", KEY, *fingerprints(1000))
    with Receiver.create("news", redis=any_server.url, capacity=10_000, **ring) as news:
        with SetSource(KEY.encode(), redis=any_server.url) as members:
            begin(news, members, 2)
            for turn in range(1, 4):
                news.rotate()
                moving = Import(news, members, print)
                assert (moving.resumed > 0) == (turn < 3)
        assert "expired" in moving.begun_anew


def test_filter_that_loses_items_during_the_import(any_server, receiver, small):
    """The end of the import says so, and the next run begins anew."""
    any_server.ask("sadd", KEY, *fingerprints(1000))
    with SetSource(KEY.encode(), redis=any_server.url) as members:
        moving = begin(receiver, members, 2)
        any_server.ask("hset", META, "inserted", 0)
        with pytest.raises(UriFilterError, match="fewer items than before; .* give the same command again"):
            moving.finish()
        assert Import(receiver, members, print).resumed == 0


@pytest.mark.parametrize("is_the_filters", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_server_of_the_set_restarts_during_the_import(any_server, make_server, small, is_the_filters):
    """Its cursors count no more: all members are read once more, and none is left out."""
    source = make_server(appendonly="yes", appendfsync="always")
    target = source if is_the_filters else any_server
    source.ask("sadd", KEY, *fingerprints(3000))
    with Receiver.create("news", redis=target.url, capacity=10_000, error_rate=1e-9) as news:
        moving = begin_set(news, source, after=lambda number: number == 4 and _restarted(source, news))
        assert moving.begun_anew == "the set's server was restarted"
        assert moving.counts.items == 3000
        assert seen(news, fingerprints(3000)) == 3000


def test_server_of_the_set_restarts_between_two_imports(receiver, make_server, small):
    """The cursor of the note counts no more: the import begins anew, and none is left out."""
    source = make_server(appendonly="yes", appendfsync="always")
    source.ask("sadd", KEY, *fingerprints(3000))
    begin_set(receiver, source, 4)
    _restarted(source, receiver)
    assert begin_set(receiver, source).begun_anew == "the source of the members has changed"
    assert seen(receiver, fingerprints(3000)) == 3000


def test_set_that_is_deleted_during_the_import(any_server, admin, receiver, small):
    """Members may be missing: the import fails."""
    admin.sadd(KEY, *fingerprints(1000))
    with pytest.raises(UriFilterError, match="there is no key .*it was there when the import began"):
        begin_set(receiver, any_server, after=lambda _: admin.delete(KEY))


@pytest.mark.parametrize(
    ("command", "words"), [("sscan", "'sscan'"), ("info", "may not run INFO"), ("scard", "'scard'")]
)
def test_missing_right(any_server, admin, receiver, command, words):
    """A user who may not read the set is told which command is forbidden."""
    admin.sadd(KEY, "a")
    with User(any_server) as reader:
        reader.forbid(command)
        with pytest.raises(UriFilterError, match=words) as refused:
            begin_set(receiver, reader)
        assert isinstance(refused.value, ServerUnavailable) == (command != "info")


def test_filter_whose_user_may_not_run_info(any_server, admin, receiver, small):
    """Nothing shows then whether the filter's server was restarted: an interrupted import begins anew."""
    admin.sadd(KEY, *fingerprints(1000))
    with User(any_server) as writer, SetSource(KEY.encode(), redis=any_server.url) as members:
        writer.forbid("info")
        with Receiver.open("news", redis=writer.url) as news:
            assert not begin(news, members, 2).can_resume
            moving = begin(news, members)
            assert (moving.resumed, moving.counts.items) == (0, 1000)


def test_file_goes_on_and_changes(any_server, imported, small, tmp_path, monkeypatch):
    """An interrupted import of files goes on in the middle of one; of files that were changed it begins anew."""
    lines = fingerprints(9000)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("".join(f"{line}\n" for line in lines[:4500]))
    second.write_text("".join(f"{line}\r\n" for line in lines[4500:]))
    from urifilter_redis.cli.importing import FileSource

    monkeypatch.chdir(tmp_path)
    with Receiver.create("news", capacity=20_000, error_rate=1e-9) as news:
        begin(news, FileSource(["first", "second"], lambda _: None), 3)
        found, _ = imported("first", second)
        assert (found["items"], found["new"], found["resumed"]) == (9000, 9000, 4500 + item_flows.WINDOW)
        assert seen(news, lines) == 9000
        begin(news, FileSource(["first", "second"], lambda _: None), 3)
        with second.open("a") as more:
            more.write("more\n")
        _, err = run("import", "news", "first", "second")
        assert "begins anew: the source of the lines has changed" in err
        assert news.contains("more")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_by_a_signal(imported, tmp_path, number):
    """The command says that it goes on there, and the same command reads the remaining lines only."""
    path, lines = tmp_path / "lines", fingerprints(200_000)
    path.write_text("".join(f"{line}\n" for line in lines))
    UriFilter.create("news", capacity=400_000, error_rate=1e-9).close()
    process, notes = start("import", "news", path), Path(os.environ["URIFILTER_DATA_DIR"], "imports")
    wait_until(lambda: [*notes.glob("*.json")], "there is no note")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        said = rf"import: stopped after [\d,]+ lines: the same command goes on there\nurifilter: .* by {number.name}\n"
        assert re.fullmatch(said, err.decode())
    found, _ = imported(path)
    assert 0 < found["resumed"] < found["items"] == 200_000
    with UriFilter.open("news") as news:
        assert seen(news, lines) == news.inserted() == 200_000


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_again_and_again(any_server, receiver, when):
    """Killed (-9) at any step, the import goes on where its note says, and at the end every member is in the filter."""
    members = fingerprints(60_000)
    any_server.ask("sadd", KEY, *members)
    what = ("move in", any_server.url, "", KEY)
    with Killer() as killer:
        resumed = kills = 0
        for step in [*range(8, 40), *range(40, 400, 9)]:
            if not killer.kill(step, when, *what):
                break
            kills += 1
            with SetSource(KEY.encode(), redis=any_server.url) as source:
                moving = Import(receiver, source, print)
            assert moving.begun_anew == ""
            assert moving.resumed >= resumed
            assert seen(receiver, members) >= moving.resumed
            resumed = moving.resumed
        assert kills > 5
        assert resumed > 20_000
        assert not killer.kill(100_000, when, *what)
        assert seen(receiver, members) == 60_000
