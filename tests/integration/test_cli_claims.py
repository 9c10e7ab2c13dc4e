"""``claim``, ``commit``, ``release``, ``reclaim``, ``beat``: lines in flight, and none lost with who had it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import cli
from support.cli import joined, urls
from support.pages import PAGES, blocks_of
from support.proxy import Fault, Proxy
from support.servers import wait_until

from urifilter_redis import UriFilter
from urifilter_redis.bloom.encoding import MOST_BYTES

HOLDER = "1234567890abcdef"


@pytest.fixture(autouse=True)
def news(there, make_filter):
    """A filter of two shards; all commands speak to its server, named by the environment."""
    return make_filter(shards=2)


def run(command, *arguments, **more):
    """Run a command about the filter."""
    return cli.run(command, "--filter", "news", *arguments, **more)


def test_lists(news):
    """What is in flight, and the dead letters; and all of it once more."""
    with news.claims() as mine:
        mine.claim_many(["a b", {"x": [1]}, b"\xff", "c"])
        mine.release(["c"], failed=True)
        mine.claim("c")
        out, _ = cli.run("claims", "news")
        assert sorted(line.split("  ")[0] for line in out.decode().splitlines()[1:]) == [
            '"\\udcff"',
            "a b",
            "c",
            '{"x": [1]}',
        ]
        assert all(mine.holder in line for line in out.decode().splitlines()[1:])
        mine.reject(["c", b"\xff"], "404")
        out, _ = cli.run("dead-letters", "news", "--limit", "1")
        assert out.decode().split()[-1] == "404"
        out, _ = cli.run("dead-letters", "news", "--retry")
        assert out == b"2 items offered once more (filter news)\n"
        assert {each.item for each in mine.reclaim()} == {"c", b"\xff"}


def test_long_lists_and_none(news):
    """Data is on stdout; what is said about it, and what is wrong, is on stderr."""
    assert cli.run("claims", "news") == (b"", "nothing is in flight (filter news)\n")
    assert cli.run("dead-letters", "news") == (b"", "nothing was rejected (filter news)\n")
    assert [cli.run("--json", name, "news") for name in ("claims", "dead-letters")] == [(b"[]\n", "")] * 2
    with news.claims() as mine:
        mine.claim_many([*map(str, range(200)), "x" * 60_000])
        out, err = cli.run("claims", "news")
        assert (len(out.splitlines()), err) == (101, "there are more: --limit 200\n")
        out, err = cli.run("claims", "news", "--limit", "201")
        assert (len(out.splitlines()), err, max(map(len, out.decode().splitlines())) < 300) == (202, "", True)
        assert len(json.loads(cli.run("--json", "claims", "news", "--limit", "7")[0])) == 7
        mine.reject(map(str, range(101)), "a\x1b[2J\nb")
        out, err = cli.run("dead-letters", "news")
        assert (len(out.splitlines()), err) == (101, "there are more: --limit 200\n")
        assert b"\x1b" not in out
        assert {each["reason"] for each in json.loads(cli.run("--json", "dead-letters", "news")[0])} == {"a\x1b[2J\nb"}
    for name in ("claims", "dead-letters"):
        assert "there is no such filter" in cli.run(name, "missing", code=2)[1]
        cli.run(name, "news", "--limit", 0, code=2)
    assert "leave out --limit" in cli.run("dead-letters", "news", "--retry", "--limit", 5, code=2)[1]
    assert json.loads(cli.run("--json", "dead-letters", "news", "--retry")[0]) == {"filter": "news", "offered": 101}


def test_rejecting(news):
    """Lines that their holder has in flight, with a reason."""
    run("claim", "--holder", HOLDER, given=b"a\nb\n")
    run("claim", given=b"d\n")
    out, err = run("commit", "--holder", HOLDER, "--reject", "answers 404", given=b"a\nd\nnever\n")
    assert (out, err) == (b"", "3 lines: 1 rejected, 2 were not in flight (filter news)\n")
    assert {(each.item, each.reason) for each in news.dead_letters()} == {("a", "answers 404")}
    for wrong in (("--holder", HOLDER), ("--reject", "")):
        assert "--reject and --holder go together" in run("commit", *wrong, given=b"b\n", code=2)[1]
    assert {each.item for each in news.in_flight()} == {"b", "d"}


def lapse(server) -> None:
    """Let all holders be dead."""
    with server.client() as admin:
        for key in admin.scan_iter("*:holders"):
            admin.zadd(key, dict.fromkeys(admin.zrange(key, 0, -1), 1))


def reclaimed(count=100_000, **more) -> list[bytes]:
    """Return the lines of ``reclaim``, however many."""
    return run("reclaim", "-q", "--limit", count, **more)[0].split(b"\n")[:-1]


def holder_in(err: str) -> str:
    return re.search(r"^holder ([0-9a-f]{16}): ", err, re.MULTILINE)[1]


def test_lines_go_from_hand_to_hand():
    """Claimed once; committed once; what is given back is printed by reclaim, until nobody has anything in flight."""
    out, err = run("claim", given=b"b\na\nb\r\nc")
    assert out == b"b\na\nc\n"
    assert err.splitlines()[-1] == "4 lines: 3 claimed, 1 in flight already, 0 seen before (filter news)"
    assert run("claim", "-q", given=b"a\nd\n") == (b"d\n", "")
    assert run("commit", given=b"a\nx\n")[1] == "2 lines: 2 final now, 0 were before (filter news)\n"
    assert run("commit", given=b"a\nd\n")[1] == "2 lines: 1 final now, 1 were before (filter news)\n"
    assert run("release", given=b"a\nb\n")[1] == "2 lines: 1 given back, 1 were not in flight (filter news)\n"
    assert (
        run("claim", given=b"a\nc\n")[1].splitlines()[-1].startswith("2 lines: 0 claimed, 1 in flight already, 1 seen")
    )
    out, err = run("reclaim")
    assert out == b"b\n"
    assert err.splitlines()[-1] == "1 line reclaimed (filter news)"
    out, err = run("reclaim", code=3)
    assert out == b""
    assert re.fullmatch(
        r"nothing is due; others have 2 items in flight, the first of which may be due in [1-9]\d* s \(filter news\)\n",
        err,
    )
    run("commit", given=b"b\nc\n")
    assert run("reclaim", code=1) == (b"", "nothing is due; nobody has anything in flight (filter news)\n")


def test_beat():
    """The command that claim tells beats for its holder, with its lease, and says how much there is."""
    _, err = run("claim", "--lease", "30m", given=b"a\nb\n")
    told = shlex.split(err.splitlines()[0].split("with: ")[1])
    assert told == ["urifilter", "beat", "--filter", "news", "--lease", "1800s", holder_in(err)]
    assert cli.run(*told[1:]) == (b"2 items in flight (filter news)\n", "")
    assert json.loads(cli.run(*told[1:], "--json")[0]) == {
        "filter": "news", "holder": holder_in(err), "in_flight": 2, "lease": 1800.0
    }  # fmt: skip
    assert cli.run(*told[1:], "-q") == (b"", "")
    run("commit", given=b"a\nb\n")
    assert cli.run(*told[1:], code=1) == (b"0 items in flight (filter news)\n", "")
    assert "--lease" not in run("claim", given=b"c\n")[1]


def test_beat_keeps_lines_in_flight(there):
    """A holder that was dead, and whose lines nobody took, has them again; another's beat changes nothing."""
    run("claim", "--holder", HOLDER, given=b"a\n")
    lapse(there)
    run("beat", HOLDER[::-1], code=1)
    with UriFilter.open("news") as other:
        assert other.claims(beats=False).outstanding().due == 0
        run("beat", HOLDER, "--lease", "1m")
        assert 50 < other.claims(beats=False).outstanding().due <= 60


def test_lines_are_text_to_crawlers_in_python(news):
    """A line is the str that a crawler claims and commits; bytes that are no UTF-8 stay bytes."""
    given = "https://example.com/é\n".encode() + b"odd \xff\n"
    assert run("claim", "-q", given=given)[0] == given
    run("release", "-q", given=given)
    with news.claims() as mine:
        assert {each.item for each in mine.reclaim()} == {b"odd \xff", "https://example.com/é"}
        assert mine.release(["https://example.com/é", b"odd \xff"]) == [True, True]
    assert set(reclaimed()) == {*given.split(b"\n")[:-1]}
    assert news.commit(["https://example.com/é"]) == [True]


def test_what_is_due_much_later(news):
    """A loop need not wait for it: with --within the exit code is that of nothing in flight, and the figures stay."""
    with news.claims(lease=3600) as mine:
        mine.claim_many(["a", "b"])
        mine.release(["a"], delay=6 * 86400)
        assert "others have 2 items in flight" in run("reclaim", "--within", "61m", code=3)[1]
        mine.commit(["b"])
        assert "others have 1 item in flight" in run("reclaim", "--within", "5d", code=1)[1]
        assert run("reclaim", "-q", "--within", "7d", code=3) == run("reclaim", "-q", code=3) == (b"", "")
        mine.release(["a"])
        news.release(["a"])
    assert run("reclaim", "-q", "--within", "5d") == (b"a\n", "")
    news.commit(["a"])
    assert run("reclaim", "-q", "--within", "5d", code=1) == (b"", "")


def test_items_that_are_no_lines(news):
    """Reclaim prints none of which a line would be another item: it parks them, and tells; --json prints them."""
    others = ["two\nlines", "end\r", "\ufeffmark", {"url": "x"}, 5, b"\xff\n"]
    with news.claims() as mine:
        mine.claim_many([*others, "a line"])
        mine.release([*others, "a line"])
    out, err = run("reclaim")
    assert out == b"a line\n"
    assert err.splitlines()[-1].startswith(
        "1 line reclaimed; 6 items that only --json prints will be due in 10 minutes"
    )
    assert run("reclaim", code=3)[0] == b""
    assert all(news.release(others))
    printed = run("reclaim", "--json", "-q")[0]
    told = [json.loads(line)["item"] for line in printed.splitlines()]
    assert sorted(map(repr, told)) == sorted(map(repr, [*others[:5], {"base64": "/wo="}]))
    out, err = run("commit", "--jsonl", "--field", "item", given=printed, code=2)
    assert (out, err.count("item is no string")) == (b"", 3)
    assert news.contains_many(["end", "mark", "\udcff\n", b"\xed\xb3\xbf\n"]) == [False] * 4
    left = {repr(each) for each in [*others[3:], "a line"]}
    assert {repr(each.item) for each in news.in_flight()} == left


def test_lines_that_are_too_long_to_be_kept():
    """They are told and left out, wherever they stand; the others are claimed; exit 2."""
    longest = b"x" * MOST_BYTES
    out, err = run("claim", given=joined([b"a", longest, b"y" * (MOST_BYTES + 1), b"b\r"]), code=2)
    assert out == joined([b"a", longest, b"b"])
    assert f"urifilter: a line of 65,537 bytes is left out, because a claim keeps at most 65,536: {'y' * 60}…" in err
    assert run("claim", "-q", given=longest + b"z", code=2)[0] == b""
    assert json.loads(run("claim", "--json", given=longest + b"z", code=2)[1].splitlines()[-1])["bad"] == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["claim", "--lease", "4s"], "a lease is 5 to 3600 seconds, and not 4.0"),
        (["claim", "--lease", "soon"], "'soon'"),
        (["claim", "--holder", "me"], "a holder is 16 hex digits that do not begin with 00, and not 'me'"),
        (["claim", "--holder", "00" + HOLDER[2:]], "a holder is 16 hex digits"),
        (["release", "--delay", "8d"], "a delay is 0 to 604800 seconds"),
        (["release", "--holder", ""], "a holder is 16 hex digits"),
        (["reclaim", "--limit", "0"], "0 is not in the range"),
        (["reclaim", "--lease", "1d"], "a lease is 5 to 3600 seconds"),
        (["beat", "me"], "a holder is 16 hex digits"),
        (["beat", HOLDER, "--lease", "1s"], "a lease is 5 to 3600 seconds"),
        (["beat"], "Missing argument"),
    ],
    ids=" ".join,
)
def test_wrong_use(wrong, said):
    """A message on stderr, and nothing is done."""
    out, err = run(*wrong, given=b"a\n", code=2)
    assert out == b""
    assert said in err
    assert run("reclaim", code=1)[0] == b""


@pytest.mark.sampled
@pytest.mark.parametrize("command", ["claim", "reclaim"])
def test_full_disk(tmp_path, command):
    """What cannot be written is given back at once: the next reclaim has all of it."""
    (tmp_path / "urls").write_bytes(joined(urls(5000)))
    arguments = [tmp_path / "urls"]
    if command == "reclaim":
        run("claim", "-q", tmp_path / "urls")
        run("release", "-q", tmp_path / "urls")
        arguments = ["--limit", 5000]
    with Path("/dev/full").open("wb") as full:
        _, err = run(command, *arguments, stdout=full, code=2)
    assert "No space left on device" in err
    assert "claimed lines that may not have been read are given back (filter news)" in err
    given_back = reclaimed()
    assert given_back
    claimed = run("claim", "-q", tmp_path / "urls")[0].split(b"\n")[:-1]
    assert sorted(given_back + claimed) == sorted(urls(5000))


@pytest.mark.slow
def test_kill_9(there, tmp_path):
    """What a killed claim had taken, printed or not, is reclaimed once its lease is over."""
    (tmp_path / "urls").write_bytes(joined(urls(5000)))
    process = cli.start("claim", "--filter", "news", tmp_path / "urls")
    process.stdout.read(1000)
    process.kill()
    process.communicate(timeout=60)
    assert json.loads(run("reclaim", "--json", code=3)[1])["others"] > 0
    lapse(there)
    lost = reclaimed()
    others = run("claim", "-q", tmp_path / "urls")[0].split(b"\n")[:-1]
    assert sorted(lost + others) == sorted(urls(5000))


@pytest.mark.slow
def test_claim_beats_while_it_waits(there):
    """A claim that waits for longer than its lease keeps its lines in flight, until it ends."""
    process = cli.start("claim", "--filter", "news", "--lease", "5s")
    cli.feed(process, b"a\n")
    assert process.stdout.readline() == b"a\n"

    def until() -> float:
        with there.client() as admin:
            scores = [admin.zrange(key, 0, -1, withscores=True)[-1][1] for key in admin.scan_iter("*:holders")]
            return max(scores)

    for _ in range(4):  # each beat is later than the one before; four take more than a lease
        before = until()
        wait_until(lambda before=before: until() > before, "it does not beat")
    assert run("claim", "-q", given=b"a\n")[0] == b""
    process.communicate(timeout=60)
    lapse(there)
    assert reclaimed() == [b"a"]


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_answers_are_lost(there):
    """Lines that may have been claimed are told, and are due when their lease is over."""
    for command in ("claim", "release", "commit"):  # by now the server knows the scripts
        run(command, given=joined(urls(100)[50:]))
    with Proxy(there.port, lambda _: Fault.CUT_AFTER) as proxy:
        out, err = run("claim", "--redis", proxy.url, given=joined(urls(10)), code=2)
        for command in ("commit", "release"):
            assert "AnswerLost" in run(command, "--json", "--redis", proxy.url, given=b"other\n", code=2)[1]
    assert out == b""
    doubt = "10 lines may have been claimed, and not printed: `urifilter reclaim` offers them when their lease is over"
    assert doubt in err
    assert run("reclaim", code=3)[0] == b""
    lapse(there)
    lost = reclaimed()
    assert lost
    claimed = run("claim", "-q", given=joined(urls(10)))[0].split(b"\n")[:-1]
    assert sorted(lost + claimed) == sorted(urls(10))


KILLER = r"""echo "$1" >> fetched
case $1 in *7) mkdir "died-at-${1##*/}" && kill -9 $PPID ;; esac
true
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xargs") is None, reason="xargs is missing: apt-get install findutils")
def test_a_crawl_in_a_shell_whose_workers_are_killed(there, news, tmp_path, monkeypatch):
    """The page's own scripts: xargs ends with each worker that is killed, and still every page is fetched and final."""
    (page,) = (page for page in PAGES if page.name == "claims-in-a-shell.md")
    for block in blocks_of(page):
        if name := block.comment("file"):
            (tmp_path / name).write_text(block.code.replace("--filter site", "--filter news"))
    links = [f"https://example.com/{number}" for number in range(20)]
    (tmp_path / "links.txt").write_text("\n".join(links))
    (tmp_path / "get.sh").write_text(KILLER)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    with subprocess.Popen(["sh", "crawl.sh"], cwd=tmp_path, stderr=subprocess.PIPE) as crawl:
        while crawl.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                crawl.wait(0.5)
            lapse(there)
        assert crawl.returncode == 0
    assert {path.name for path in tmp_path.glob("died-at-*")} == {"died-at-7", "died-at-17"}
    assert {*(tmp_path / "fetched").read_text().split()} == {*links}
    assert news.ages(links) == [1] * len(links)
    run("reclaim", code=1)
