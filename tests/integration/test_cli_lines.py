"""``add``, ``check``, ``dedupe``, ``forget``: lines as items, and nothing lost between."""

from __future__ import annotations

import array
import bz2
import codecs
import fcntl
import gzip
import json
import lzma
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import zstandard
from support import cli
from support.cli import joined, urls
from support.proxy import Fault, Proxy
from support.servers import wait_until
from urifilter_redis.cli.lines import placed_windows

from urifilter_redis import UriFilter

pytestmark = pytest.mark.usefixtures("there")


@pytest.fixture
def precise(make_filter):
    """A filter that takes no line for another by chance."""
    return make_filter("precise")


def test_dedupe_prints_new_lines_in_order(tmp_path):
    """Duplicates go, order stays; the default filter is made; a second run prints nothing and says why."""
    file = tmp_path / "urls"
    file.write_bytes(b"b\na\nb\nc\na\n")
    out, err = cli.run("dedupe", file)
    assert out == b"b\na\nc\n"
    assert err == "5 lines: 3 new, 2 seen before (filter default)\n"
    out, err = cli.run("dedupe", file)
    assert out == b""
    assert "0 new, 5 seen before (filter default); all were printed by an earlier run" in err
    assert "--temporary" in err
    config = UriFilter.open("default").config
    assert (config.capacity, config.error_rate, config.layout, config.normalize) == (
        10_000_000,
        1e-4,
        "blocked",
        "none",
    )


def test_dedupe_reads_stdin_and_several_files(tmp_path):
    """Without files stdin; ``-`` is stdin among files; -q silences the summary."""
    (tmp_path / "one").write_bytes(b"a\nb")
    assert cli.run("dedupe", "-q", given=b"a\n") == (b"a\n", "")
    assert cli.run("dedupe", "-q", tmp_path / "one", "-", given=b"b\nc\n") == (b"b\nc\n", "")


def test_items_are_lines_without_ends_and_bom(precise, tmp_path):
    """CRLF, LF, no end at all and a byte order mark make no difference; the output is the items, byte for byte."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(codecs.BOM_UTF8 + b"a\r\nb\n\n\xff\xfe odd\r\nlast")
    second.write_bytes(b"a\nb\r\n\r\n\xff\xfe odd\nlast\n" + codecs.BOM_UTF8 + b"a\nx")
    assert cli.run("dedupe", "-q", "--filter", "precise", first)[0] == b"a\nb\n\n\xff\xfe odd\nlast\n"
    assert cli.run("dedupe", "-q", "--filter", "precise", second)[0] == b"x\n"
    assert cli.run("check", "--filter", "precise", given=b"\n", code=0)[0] == b"seen\t\n"


#: Lines that are read otherwise than they stand: with other ends, and as the first of a file from Windows, which is the
#: first of a stream or follows another file.
ODD_LINES = (
    b"\xef\xbb\xbfa\r\nb\r\n\xef\xbb\xbfc\r\r\n\xef\xbb\xbf\xef\xbb\xbfd\n e\t\n\xef\xbb\xbf\r\nf\xef\xbb\xbf\rg\r"
)
ITEMS = [b"a", b"b", b"c", b"d", b" e\t", b"", b"f\xef\xbb\xbf\rg"]


@pytest.mark.parametrize("command", ["dedupe", "claim", "check"])
def test_a_printed_line_is_known_to_the_next_command(precise, command):
    """What is printed is what was compared, whatever ends and byte order marks the line had."""
    more = ["--new"] if command == "check" else ["-q"]
    printed = cli.run(command, *more, "--filter", "precise", given=ODD_LINES, code=0)[0]
    assert printed == joined(ITEMS)
    if command == "check":
        cli.run("add", "-q", "--filter", "precise", given=printed)
        assert cli.run("check", "--filter", "precise", given=ODD_LINES)[0] == joined(b"seen\t" + each for each in ITEMS)
    else:
        undo = "forget" if command == "dedupe" else "commit"
        _, told = cli.run(undo, "--filter", "precise", given=printed)
        assert told.startswith("7 lines: 7 ")
    assert cli.run("digest", given=ODD_LINES)[0] == cli.run("digest", given=printed)[0]


def test_many_lines_in_windows(precise, tmp_path):
    """More lines than a window, more bytes than a chunk."""
    lines = urls(60_000)
    (tmp_path / "urls").write_bytes(joined(lines + lines[::7]))
    out, err = cli.run("dedupe", "--filter", "precise", tmp_path / "urls")
    assert out == joined(lines)
    assert "60,000 new" in err


@pytest.mark.parametrize("command", ["dedupe", "claim"])
def test_first_of_equal_lines_is_printed(tmp_path, command):
    """Near and far apart, with other ends of lines, and with a normalisation that makes lines equal."""
    UriFilter.create("pages", capacity=100_000, error_rate=1e-8, normalize="whatwg").close()
    lines = [b"http://%d.com/" % (number // 2) for number in range(12_000)]
    for at in range(1, 12_000, 2):
        lines[at] = lines[at][:-1] + b"#top\r"
    lines += [b"HTTP://0.com", b"http://5999.com"]
    (tmp_path / "urls").write_bytes(joined(lines))
    assert cli.run(command, "-q", "--filter", "pages", tmp_path / "urls")[0] == joined(lines[:12_000:2])
    if command == "claim":
        out, _ = cli.run("commit", "--json", "--filter", "pages", tmp_path / "urls")
        assert json.loads(out)["committed"] == 6000


COMPRESSED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_lines(precise, tmp_path, kind):
    """Its lines are the items, from files and stdin; ``cat`` of two such files is one; an empty one has none."""
    pack = COMPRESSED[kind]
    file, rest = tmp_path / "urls", tmp_path / "rest"
    file.write_bytes(pack(joined(urls(3000))) + pack(b"last"))
    rest.write_bytes(pack(b""))
    _, err = cli.run("add", "--filter", "precise", given=pack(joined(urls(2000))))
    assert err.startswith("2,000 lines: 2,000 added")
    assert cli.run("dedupe", "-q", "--filter", "precise", file, rest)[0] == joined([*urls(3000)[2000:], b"last"])
    assert cli.run("check", "--filter", "precise", given=pack(b"last\nnew"), code=0)[0] == b"seen\tlast\nnew\tnew\n"


@pytest.mark.parametrize("kind", COMPRESSED)
def test_damaged_compressed_lines(tmp_path, kind):
    """What ends too early, or has something else behind it, is told; no piece of a line is an item; exit 2.

    The lines before that are printed.
    """
    packed = COMPRESSED[kind](joined(urls(10_000)))
    for name, data, why in (("cut", packed[:-5], "too early"), ("more", packed + b"https://a/\n", "damaged")):
        (tmp_path / name).write_bytes(data)
        out, err = cli.run("dedupe", "--temporary", tmp_path / name, code=2)
        assert f"{tmp_path / name}: its compressed data" in err
        assert why in err
        assert "the lines up to there were read" in err
        assert set(out.splitlines()) <= {*urls(10_000)}
        assert name == "cut" or out.splitlines() == urls(10_000)


def test_items_that_are_no_utf_8_as_json(precise):
    """Of what check prints --jsonl takes no other item for them."""
    out, _ = cli.run(
        "check", "--json", "--new", "-q", "--filter", "precise", given=b"http://x/\xff\n\xc3\xa4\n", code=0
    )
    items = [json.loads(line)["item"] for line in out.splitlines()]
    assert items == [{"base64": "aHR0cDovL3gv/w=="}, "ä"]
    _, err = cli.run("add", "--filter", "precise", "--jsonl", "--field", "item", given=out, code=2)
    assert "line 1 is left out" in err
    assert cli.json_of("digest", b"\xff".decode(errors="surrogateescape"))["item"] == {"base64": "/w=="}


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_lines_from_a_place_on(tmp_path, kind):
    """An interrupted import goes on after the lines that it has; the place counts unpacked bytes."""
    file = tmp_path / "urls"
    file.write_bytes(COMPRESSED[kind](joined(urls(300))))
    windows = list(placed_windows([str(file)], pytest.fail, most=100))
    for number, (_, place) in enumerate(windows):
        after = [window for window, _ in placed_windows([str(file)], pytest.fail, begin=place, most=100)]
        assert after == [window for window, _ in windows[number + 1 :]]


def frame_of_pzstd(data: bytes) -> bytes:
    """A frame that is skipped, with the size of the next one, and that one."""
    packed = zstandard.compress(data)
    return b"\x50\x2a\x4d\x18" + struct.pack("<II", 4, len(packed)) + packed


def frame_of_a_large_window(data: bytes) -> bytes:
    """A frame as ``zstd --long=28`` makes it: a window of 256 MiB, and one raw block, the last."""
    return b"\x28\xb5\x2f\xfd\0" + bytes([(28 - 10) << 3]) + (len(data) << 3 | 1).to_bytes(3, "little") + data


@pytest.mark.parametrize("pack", [frame_of_pzstd, frame_of_a_large_window])
def test_other_frames_of_zstandard(tmp_path, pack):
    """What pzstd and ``zstd --long`` make is read, from files and in a pipe."""
    (tmp_path / "urls").write_bytes(pack(b"a\nb\n") + pack(b"c\n"))
    assert cli.run("dedupe", "-q", "--temporary", tmp_path / "urls")[0] == b"a\nb\nc\n"
    assert cli.run("dedupe", "-q", "--temporary", given=pack(b"a\nb\n"))[0] == b"a\nb\n"


URLS = "https://a.example/\nhttps://b.example/\n"
NO_LINES = {
    "UTF-16 without a mark": (URLS.encode("utf-16-le"), "convert it with iconv -f UTF-16LE -t UTF-8"),
    "UTF-32": (URLS.encode("utf-32"), "it is UTF-32"),
    "UTF-32 without a mark": (URLS.encode("utf-32-be"), "it is UTF-32"),
    "requests.seen": (b"\0\x14" + bytes(range(20)) + b"\0\x14" + b"\n" * 20, "it is a binary requests.seen of Scrapy"),
    "zip": (b"PK\3\4\n\0rest\n", "it is a zip archive: unpack it first"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4\n", "it is a 7z archive: unpack it first"),
    "lz4": (b"\x04\x22\x4d\x18\x64\x40\n", "it is compressed by lz4: unpack it first"),
    "lzip": (b"LZIP\1\x14\n", "it is compressed by lzip: unpack it first"),
}


@pytest.mark.parametrize("kind", NO_LINES)
def test_files_without_lines(tmp_path, kind):
    """They are refused with what they are, inside gzip, too; the others are read; exit 2."""
    data, why = NO_LINES[kind]
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "file.gz").write_bytes(gzip.compress(data))
    (tmp_path / "good").write_bytes(b"a\n")
    given = [tmp_path / name for name in ("file", "file.gz", "good")]
    out, err = cli.run("dedupe", "-q", "--temporary", *given, code=2)
    assert out == b"a\n"
    told = [line for line in err.splitlines() if why in line]
    assert [line.partition(":")[0] for line in told] == ["urifilter"] * 2, err
    assert f"{tmp_path / 'file'}: " in told[0]
    assert f"{tmp_path / 'file.gz'}: " in told[1]


def test_a_file_without_lines_makes_no_filter(there, tmp_path):
    """It is told before a filter is made; what was compressed twice is told, too."""
    (tmp_path / "file").write_bytes(NO_LINES["zip"][0])
    assert "it is a zip archive" in cli.run("dedupe", tmp_path / "file", code=2)[1]
    assert there.ask("keys") == []
    assert "compressed twice" in cli.run("add", given=gzip.compress(gzip.compress(b"a\n")), code=2)[1]


@pytest.mark.parametrize("command", [["fingerprint"], ["digest"], ["check", "--filter", "precise"]])
def test_lines_that_end_too_early_are_told_by_each_command(precise, command):
    """Its lines up to there are answered, and the exit code is 2, also in a pipe."""
    packed = gzip.compress(joined(urls(3)))[:-5]
    out, err = cli.run(*command, given=packed, code=2)
    assert out.count(b"\n") == 3
    assert "stdin: its compressed data end too early" in err


@pytest.mark.parametrize("command", ["dedupe", "add", "claim"])
def test_a_mistyped_file_makes_no_filter(there, tmp_path, command):
    """Nothing is made for files none of which can be read; with one that can be it is made."""
    text = cli.run(command, tmp_path / "none", tmp_path, code=2)[1]
    assert f"urifilter: {tmp_path / 'none'}: No such file or directory\nurifilter: {tmp_path}: Is a directory\n" == text
    with there.client() as client:
        assert client.keys() == []
        (tmp_path / "urls").write_bytes(b"a\n")
        cli.run(command, tmp_path / "none", tmp_path / "urls", code=2)
        assert client.exists("urifilter:{default:0}:meta")


@pytest.mark.parametrize("command", ["add", "dedupe"])
def test_repeated_lines_are_kept_from_the_server(precise, there, tmp_path, command):
    """Each line is sent once, however often it comes."""
    (tmp_path / "urls").write_bytes(joined(urls(3000) * 6))
    with there.client() as client:
        client.config_resetstat()
        _, err = cli.run(command, "--filter", "precise", tmp_path / "urls")
        assert err.startswith("18,000 lines: 3,000 ")
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls <= 15  # of 36 that all lines would take: six, each once more once the script is loaded, and to open


@pytest.mark.slow
def test_lines_before_a_named_pipe_without_a_writer(tmp_path):
    """They are printed before it is opened, which takes until there is a writer."""
    (tmp_path / "one").write_bytes(b"a\n")
    os.mkfifo(tmp_path / "pipe")
    process = cli.start("dedupe", "-q", tmp_path / "one", tmp_path / "pipe")
    assert process.stdout.readline() == b"a\n"
    (tmp_path / "pipe").write_bytes(b"a\nb\n")
    assert process.communicate(timeout=60) == (b"b\n", b"")


@pytest.mark.slow
def test_long_lines(precise, tmp_path):
    """A line of 16 MiB is an item; a longer one is reported by its number, the rest goes on, exit 2."""
    longest = b"x" * (16 << 20)
    (tmp_path / "file").write_bytes(joined([b"a", longest + b"y", b"b", longest]) + longest + b"z")
    out, err = cli.run("dedupe", "--filter", "precise", tmp_path / "file", code=2)
    assert out == joined([b"a", b"b", longest])
    assert f"{tmp_path / 'file'}: line 2 is longer than 16 MiB and left out" in err
    assert "line 5 is longer" in err


def test_unreadable_file_among_others(tmp_path):
    """A file that is not there, a name that is too long, and a folder: told, the others are read, exit 2."""
    (tmp_path / "good").write_bytes(b"a\n")
    out, err = cli.run("dedupe", tmp_path / "none", tmp_path / ("x" * 300), tmp_path, tmp_path / "good", code=2)
    assert out == b"a\n"
    assert f"{'x' * 300}: File name too long" in err
    assert f"{tmp_path / 'none'}: No such file or directory" in err
    assert f"{tmp_path}: Is a directory" in err


def test_temporary(there):
    """--temporary prints the same lines each time and leaves nothing behind."""
    for _ in range(2):
        assert cli.run("dedupe", "--temporary", given=b"a\nb\na\n")[0] == b"a\nb\n"
    assert there.ask("keys") == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["dedupe", "--temporary", "--filter", "urls"], "leave one of them out"),
        (["check", "--archive-file", "news.tar", "--filter", "urls"], "leave one of them out"),
        (["digest", "--filter", "urls", "--hash", "mmh3"], "--hash is the filter's own"),
        (["digest", "--filter", "urls", "--normalize", "none"], "--normalize is the filter's own"),
    ],
)
def test_options_of_another_filter(call, said):
    """What would not count is refused, also if it is the default."""
    assert said in cli.run(*call, code=2)[1]


def test_temporary_leaves_no_archive(tmp_path, monkeypatch):
    """The archive of the environment is for filters that stay: nothing is written there."""
    monkeypatch.setenv("URIFILTER_ARCHIVE", f"file://{tmp_path}/archive")
    assert cli.run("dedupe", "--temporary", given=b"a\n")[0] == b"a\n"
    assert not (tmp_path / "archive").exists()
    assert cli.run("dedupe", given=b"a\n")[0] == b"a\n"
    assert (tmp_path / "archive").exists()


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 30_000])
@pytest.mark.parametrize(("command", "end"), [("dedupe", "new again"), ("claim", "given back")])
def test_head_closes_the_pipe_and_nothing_is_missing(precise, tmp_path, command, end, count):
    """Dedupe | head, then dedupe again whole: both outputs together have every line. So has claim."""
    (tmp_path / "urls").write_bytes(joined(urls(count)))
    line = f"'{sys.executable}' -m urifilter_redis.cli {command} --filter precise '{tmp_path}/urls'"
    done = subprocess.run(f"{line} | head -5", shell=True, capture_output=True, timeout=60)
    assert done.stdout == joined(urls(5))
    assert f"may not have been read are {end}" in done.stderr.decode()
    second, _ = cli.run(command, "--filter", "precise", tmp_path / "urls")
    assert set((done.stdout + second).split(b"\n")) >= set(urls(count))
    assert cli.run(command, "--filter", "precise", tmp_path / "urls")[0] == b""


@pytest.mark.slow
def test_a_reader_that_has_enlarged_the_pipe(precise, tmp_path):
    """What is in it is printed again, too."""
    (tmp_path / "urls").write_bytes(joined(urls(60_000)))
    process = cli.start("dedupe", "--filter", "precise", tmp_path / "urls", pipesize=1 << 20)
    unread = array.array("i", [0])

    def is_full() -> bool:
        fcntl.ioctl(process.stdout, termios.FIONREAD, unread)
        return unread[0] > 1_000_000

    wait_until(is_full, "it does not print")
    first = process.stdout.read(300)
    process.stdout.close()
    assert process.wait(60) == 141
    process.stderr.close()
    process.stdin.close()
    second, _ = cli.run("dedupe", "--filter", "precise", tmp_path / "urls")
    assert set((first + second).split(b"\n")) >= set(urls(60_000))


def test_full_disk(precise, tmp_path):
    """What cannot be written is forgotten again, and what is written is not: exactly, for a file."""
    (tmp_path / "urls").write_bytes(joined(urls(9000)))
    with Path("/dev/full").open("wb") as full:
        _, err = cli.run("dedupe", "--filter", "precise", tmp_path / "urls", stdout=full, code=2)
    assert "No space left on device" in err
    assert cli.run("dedupe", "--filter", "precise", tmp_path / "urls")[0] == joined(urls(9000))


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_full_disk_and_lost_answers(there, precise, tmp_path):
    """The lines that may have been inserted without an answer are counted in the message."""
    for method in (precise.insert, lambda item: precise.forget([item])):
        method("load the script")
    (tmp_path / "urls").write_bytes(joined(urls(30_000)))
    scripts: list[bytes] = []

    def plan(command: list[bytes]) -> Fault:
        scripts.append(command[1])
        works = len(scripts) <= 6 or command[1] != scripts[0]
        return Fault.PASS if works else Fault.CUT_AFTER

    with Proxy(there.port, plan) as proxy, Path("/dev/full").open("wb") as full:
        arguments = ("dedupe", "--redis", proxy.url, "--filter", "precise", tmp_path / "urls")
        _, err = cli.run(*arguments, stdout=full, code=2)
    found = re.search(r"stopped: ([0-9,]+) new lines that may not have been read are new again", err)
    doubtful = re.search(r"; ([0-9,]+) lines may have been inserted, and not printed: `urifilter forget`", err)
    assert int(found[1].replace(",", "")) + int(doubtful[1].replace(",", "")) == 4000


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
def test_ctrl_c_while_answers_are_lost(there, precise, tmp_path):
    """A user who presses Ctrl-C while answers are lost is told of the lines that may have been inserted."""
    precise.insert("load the script")
    (tmp_path / "urls").write_bytes(joined(urls(10)))
    with Proxy(there.port, lambda _: Fault.CUT_AFTER) as proxy:
        process = cli.start("dedupe", "--redis", proxy.url, "--filter", "precise", tmp_path / "urls")
        wait_until(lambda: proxy.counts[Fault.CUT_AFTER], "nothing was sent")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"", 130)
    assert b"10 lines may have been inserted, and not printed: `urifilter forget`" in err


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_file_size_limit(precise, tmp_path, mode):
    """A file that takes only a part: its lines are remembered, the rest is new again, and no line is left in part."""
    (tmp_path / "urls").write_bytes(joined(urls(9000)))
    import resource

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    with (tmp_path / "out").open(mode) as out:
        cli.run_process("dedupe", "--filter", "precise", tmp_path / "urls", stdout=out, preexec_fn=limit, code=2)
    assert 99_900 < (tmp_path / "out").stat().st_size < 100_000
    with (tmp_path / "out").open("ab") as out:
        cli.run_process("dedupe", "--filter", "precise", tmp_path / "urls", stdout=out)
    assert (tmp_path / "out").read_bytes() == joined(urls(9000))


FULL_WITHIN = """
import os
from urifilter_redis.cli import main

write, written = os.write, []

def full(descriptor, data):
    if descriptor == 1 and written:
        os.write = write
        with open("out", "ab") as out:
            out.write({others!r})
        raise OSError(28, "No space left on device")
    if descriptor == 1:
        written.append(data)
        data = data[:{size}]
    return write(descriptor, data)

os.write = full
main()
"""


@pytest.mark.sampled
@pytest.mark.parametrize("size", [14, 3, 12, 30, 45])
def test_a_disk_that_is_full_within_a_record_of_several_lines(precise, tmp_path, size):
    """The whole record is printed by the next run, and no part of it stays."""
    records = b"".join(b'"of\ntwo\nlines",https://example.com/%d\n' % number for number in range(9))
    (tmp_path / "links").write_bytes(records)
    options = ["dedupe", "-q", "--csv", "--column", "2", "--filter", "precise", "links"]
    with (tmp_path / "out").open("ab") as out:
        call = [sys.executable, "-c", FULL_WITHIN.format(size=size, others=b""), *options]
        assert subprocess.run(call, stdout=out, cwd=tmp_path, timeout=60).returncode == 2
        cli.run_process(*options, stdout=out, cwd=tmp_path)
    assert (tmp_path / "out").read_bytes() == records


@pytest.mark.slow
def test_what_others_write_into_the_same_file_stays(precise, tmp_path):
    """A line in part before it stays, too."""
    (tmp_path / "urls").write_bytes(joined(urls(100)))
    full = FULL_WITHIN.format(size=1000, others=b"of another\n")
    call = [sys.executable, "-c", full, "dedupe", "--filter", "precise", "urls"]
    with (tmp_path / "out").open("ab") as out:
        assert subprocess.run(call, stdout=out, cwd=tmp_path, timeout=60).returncode == 2
    assert (tmp_path / "out").read_bytes() == joined(urls(100))[:1000] + b"of another\n"


@pytest.mark.slow
def test_signal_while_waiting_for_input(precise):
    """Ctrl-C while stdin is silent ends at once; what was printed stays printed."""
    process = cli.start("dedupe", "--filter", "precise")
    cli.feed(process, b"a\n")
    assert process.stdout.readline() == b"a\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.sampled
@pytest.mark.parametrize("command", ["dedupe", "claim"])
def test_lines_come_out_as_they_come_in(started, command):
    """A slow stdin is not held back until a window is full; what was claimed stays in flight."""
    process = started(command, "-q")
    for line in (b"a\n", b"b\n"):
        cli.feed(process, line)
        assert process.stdout.readline() == line
    process.communicate(timeout=60)
    assert process.returncode == 0
    with UriFilter.open("default") as news:
        assert {each.item for each in news.in_flight()} == ({"a", "b"} if command == "claim" else set())


@pytest.mark.slow
def test_kill_9_costs_at_most_a_window(precise, tmp_path):
    """A kill -9 costs what the page about pipes says: at most one window's lines are remembered and not printed."""
    (tmp_path / "urls").write_bytes(joined(urls(60_000)))
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = cli.start("dedupe", "--filter", "precise", tmp_path / "urls", stdout=file)
        wait_until(lambda: out.stat().st_size > 200_000 or process.poll() is not None, "no output")
        process.kill()
        process.communicate()
    second, _ = cli.run("dedupe", "--filter", "precise", tmp_path / "urls")
    missing = set(urls(60_000)) - set((out.read_bytes() + second).split(b"\n"))
    assert len(missing) <= 4000


@pytest.mark.slow
@pytest.mark.usefixtures("usual_timeouts")
@pytest.mark.parametrize("command", ["dedupe", "claim"])
def test_server_dies_under_way(make_server, tmp_path, monkeypatch, started, command):
    """The server is killed: lines known to be new are out, the message is short, and none is printed twice."""
    server = make_server("redis70", appendonly="yes", appendfsync="always")
    monkeypatch.setenv("URIFILTER_REDIS_URL", server.url)
    UriFilter.create("precise", capacity=100_000, error_rate=1e-8).close()
    lines = urls(30_000)
    process = started(command, "-q", "--filter", "precise")
    cli.feed(process, joined(lines[:100]))
    first = b"".join(process.stdout.readline() for _ in range(100))
    server.kill()
    cli.feed(process, joined(lines[100:200]))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    for other in (["commit"], ["release"], ["reclaim"], ["beat", "1234567890abcdef"]):
        assert str(server.port) in cli.run(*other, "--filter", "precise", given=b"a\n", code=2)[1]
    server.start()
    second, _ = cli.run(command, "--filter", "precise", given=joined(lines[:200]))
    assert first + out + second == joined(lines[:200])


def test_check(precise, tmp_path):
    """Seen or new before each line, nothing inserted; exit 0 if any was seen, 1 if none."""
    cli.run("add", "--filter", "precise", given=b"a\nb\n")
    for _ in range(2):
        assert cli.run("check", "--filter", "precise", given=b"a\nx\r\nb")[0] == b"seen\ta\nnew\tx\nseen\tb\n"
    assert cli.run("check", "--filter", "precise", given=b"x\ny\n", code=1)[0] == b"new\tx\nnew\ty\n"
    assert cli.run("check", "--filter", "precise", given=b"", code=1)[0] == b""


def test_check_new(precise, tmp_path):
    """--new prints only what is not in the filter; exit 0 if there is any, else 1."""
    cli.run("add", "--filter", "precise", given=b"a\nb\n")
    assert cli.run("check", "--new", "--filter", "precise", given=b"a\nx\nb\ny")[0] == b"x\ny\n"
    assert cli.run("check", "--new", "--filter", "precise", given=b"a\n", code=1)[0] == b""
    assert cli.run("check", "--filter", "precise", tmp_path / "none", code=2)[0] == b""


def test_add_and_forget(precise):
    """Add prints no lines and says what it did; forget makes new again."""
    out, err = cli.run("add", "--filter", "precise", given=b"a\nb\na\n")
    assert (out, err) == (b"", "3 lines: 2 added to filter precise, 1 were there\n")
    out, err = cli.run("forget", "--filter", "precise", given=b"a\nx\n")
    assert (out, err) == (b"", "2 lines: 1 forgotten, 1 were not there\n")
    assert cli.run("dedupe", "--filter", "precise", given=b"a\nb\n")[0] == b"a\n"


def test_json_summaries():
    """--json: on stdout where it is free, on stderr where stdout is data."""
    expected = {"filter": "default", "lines": 2, "new": 1, "seen": 1, "bad": 0, "over_capacity": False}
    out, err = cli.run("dedupe", "--json", given=b"a\na\n")
    assert (out, json.loads(err)) == (b"a\n", expected)
    out, err = cli.run("add", "--json", given=b"b\na\n")
    assert (json.loads(out), err) == (expected, "")


@pytest.mark.parametrize("command", ["add", "check", "claim", "commit", "dedupe", "forget", "reclaim", "release"])
def test_filter_that_is_not_there(command):
    """A named filter is not made by accident; of the commands that name none, only some make the default one."""
    out, err = cli.run(command, "--filter", "nope", given=b"a\n", code=2)
    assert (out, "there is no such filter" in err) == (b"", True)
    assert "urifilter create nope --capacity" in err
    if command in {"add", "claim", "dedupe"}:
        cli.run(command, given=b"a\n")
    else:
        assert "filter 'default'" in cli.run(command, given=b"a\n", code=2)[1]


def test_over_capacity_is_said():
    """A filter over its capacity goes on working, and says so."""
    UriFilter.create("small", capacity=10).close()
    _, err = cli.run("dedupe", "--filter", "small", given=joined(urls(100)))
    assert "filter small is over its capacity" in err
    out, err = cli.run("add", "--json", "-q", "--filter", "small", given=b"a")
    assert (json.loads(out)["over_capacity"], err) == (True, "")


@pytest.mark.slow
def test_progress_only_on_a_terminal(precise, tmp_path):
    """On a terminal there is progress; the summary comes after it."""
    (tmp_path / "urls").write_bytes(joined(urls(20_000)))
    main, terminal = os.openpty()
    process = cli.start("dedupe", "--filter", "precise", tmp_path / "urls", stderr=terminal, stdout=subprocess.DEVNULL)
    os.close(terminal)
    shown = b""
    try:
        while block := os.read(main, 4096):
            shown += block
    except OSError:  # the terminal's other end is closed
        pass
    os.close(main)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\x1b[?25l" in shown  # the cursor is hidden while the bar moves
    assert shown.decode().rstrip().endswith("20,000 lines: 20,000 new, 0 seen before (filter precise)")
