"""Records of CSV and JSON lines, lines that end with NUL, trimmed and counted ones, in all commands about lines."""

from __future__ import annotations

import codecs
import functools
import gzip
import json
import signal
import subprocess
import sys

import pytest
from support import cli
from support.servers import wait_until

from urifilter_redis import UriFilter

pytestmark = pytest.mark.usefixtures("there")

URLS = [b"https://example.com/%d" % number for number in range(6)]
CSV = ("--csv", "--field", "url")
JSONL = ("--jsonl", "--field", "url")

#: The same URLs in each form, with the options that read it.
FORMS = {
    "plain": ((), b"".join(b"%s\n" % url for url in URLS)),
    "csv": (CSV, codecs.BOM_UTF8 + b'title,url\r\n"a,\r\n""b""",' + b'\r\n"c",'.join(URLS) + b"\r\n"),
    "column": (("--csv", "--column", 2, "--delimiter", r"\t"), b"".join(b"t\t%s\n" % url for url in URLS)),
    "jsonl": (JSONL, b"".join(b' {"title": "a\\n", "url": "%s"}\n' % url.replace(b"/", b"\\/") for url in URLS)),
    "null": (("-0",), b"".join(b"%s\0" % url for url in URLS)),
    "trim": (("--trim",), b"".join(b" %s\t\r\n" % url for url in URLS)),
    "utf-16": ((), b"\n".join(URLS).decode().encode("utf-16")),
    "gzip": (CSV, gzip.compress(b"url\n" + b"\n".join(URLS))),
}


def dedupe(*options, given: bytes = b"") -> bytes:
    """Return the lines that ``dedupe`` prints."""
    return cli.run("dedupe", "-q", *options, given=given)[0]


def make(name="precise", **settings) -> None:
    UriFilter.create(name, capacity=100_000, error_rate=1e-8, **settings).close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("known", ["plain", "csv", "jsonl"])
def test_a_url_is_one_item_in_every_form(known, form):
    """What one form has inserted is seen in every other one."""
    make()
    options, data = FORMS[known]
    assert json.loads(cli.run("add", "--json", *options, "--filter", "precise", given=data)[0])["new"] == 6
    options, data = FORMS[form]
    out, err = cli.run("add", "--json", *options, "--filter", "precise", given=data)
    assert (json.loads(out)["seen"], err) == (6, "")
    digests = cli.run("digest", *options, given=data)[0].replace(b"\0", b"\n")
    assert digests == cli.run("digest", given=FORMS["plain"][1])[0]


@pytest.mark.parametrize("form", ["csv", "column", "jsonl", "null"])
@pytest.mark.parametrize("command", ["dedupe", "claim", "check"])
def test_records_are_printed_as_they_stand(command, form):
    """New records are printed byte for byte, and the header before them; a second run prints the header alone."""
    make()
    options, data = FORMS[form]
    more = ["--new"] if command == "check" else ["-q"]
    assert cli.run(command, *more, *options, "--filter", "precise", given=data)[0] == data
    if command == "check":
        cli.run("add", "-q", *options, "--filter", "precise", given=data)
    header = codecs.BOM_UTF8 + b"title,url\r\n" if form == "csv" else b""
    code = 1 if command == "check" else 0
    assert cli.run(command, *more, *options, "--filter", "precise", given=data, code=code)[0] == header


def test_check_puts_nothing_before_a_header(tmp_path):
    """Marks stand before records, and not before the header; --json leaves it out; an export is asked alike."""
    make()
    data = b'title,url\n"a\nb",https://a/\nc,https://c/\n'
    cli.run("add", "--filter", "precise", given=b"https://a/\n")
    asked = ("check", *CSV, "--filter", "precise")
    assert cli.run(*asked, given=data)[0] == b'title,url\nseen\t"a\nb",https://a/\nnew\tc,https://c/\n'
    assert cli.run(*asked, "--new", given=data)[0] == b"title,url\nc,https://c/\n"
    out, err = cli.run(*asked, "--json", given=data)
    assert [json.loads(line)["item"] for line in out.splitlines()] == ["https://a/", "https://c/"]
    expected = {"filter": "precise", "lines": 2, "new": 1, "seen": 1, "bad": 0, "field": "url"}
    assert json.loads(err) == expected
    archive = f"file://{tmp_path}/archive"
    cli.run("add", "-q", "--archive", archive, given=b"https://a/\n")
    cli.run("checkpoint", "--archive", archive, "default")
    cli.run("archive", "export", "--archive", archive, "default", tmp_path / "out")
    asked = ("check", *CSV, "--archive-file", tmp_path / "out")
    assert cli.run(*asked, given=data)[0] == b'title,url\nseen\t"a\nb",https://a/\nnew\tc,https://c/\n'


@pytest.mark.parametrize("undo", ["plain", "csv", "jsonl"])
def test_records_that_change_the_state_of_an_item(undo):
    """``forget``, ``remove``, ``commit`` and ``release`` take what was printed, plain URLs, or any other form."""
    make()
    make("counted", layout="counting")
    options, data = FORMS[undo]
    printed = dedupe(*CSV, "--filter", "precise", given=FORMS["csv"][1])
    read = "6 lines" if undo == "plain" else "6 records, field url"
    told = cli.run("forget", *options, "--filter", "precise", given=data)[1]
    assert told == f"{read}: 6 forgotten, 0 were not there\n"
    cli.run("add", "-q", *CSV, "--filter", "counted", given=printed)
    told = cli.run("remove", *options, "--filter", "counted", given=data)[1]
    assert told == f"{read}: 6 removed, 0 were not there\n"
    claimed = cli.run("claim", *CSV, "--filter", "precise", given=printed)
    assert claimed[0] == printed
    assert claimed[1].endswith("6 records, field url: 6 claimed, 0 in flight already, 0 seen before (filter precise)\n")
    told = cli.run("release", *options, "--filter", "precise", given=data)[1]
    assert told == f"{read}: 6 given back, 0 were not in flight (filter precise)\n"
    assert {*cli.run("reclaim", "-q", "--filter", "precise")[0].splitlines()} == {*URLS}
    told = cli.run("commit", *options, "--filter", "precise", given=data)[1]
    assert told == f"{read}: 6 final now, 0 were before (filter precise)\n"
    assert cli.run("check", *CSV, "--filter", "precise", given=printed)[0].count(b"seen\t") == 6


def test_summaries_name_the_field():
    """The text and the JSON of each say which field or column was read; those of plain lines have no such word."""
    out, err = cli.run("dedupe", *CSV, given=b"url\na\na\n")
    assert err == "2 records, field url: 1 new, 1 seen before (filter default)\n"
    out, err = cli.run("dedupe", "--json", "--csv", "--column", 1, given=b"b\n")
    assert json.loads(err)["column"] == 1
    out, err = cli.run("add", "--csv", "--column", 1, given=b"c")
    assert err == "1 record, column 1: 1 added to filter default, 0 were there\n"
    out, err = cli.run("add", "--json", *JSONL, given=b'{"url":"c"}')
    assert json.loads(out) == {
        "filter": "default", "lines": 1, "new": 0, "seen": 1, "bad": 0, "over_capacity": False, "field": "url",
    }  # fmt: skip
    assert "field" not in cli.run("add", "--json", given=b"c")[0].decode()
    out, err = cli.run("import", "news", *CSV, given=b"id,url\n1,a\n")
    assert err == "import: 1 record, field url: 1 new, 0 seen before (filter news)\n"


def test_files_with_a_header_each(tmp_path):
    """The first header is printed, and those of the others are read; a file with other columns is left out, exit 2."""
    files = {"a": b"id,url\n1,x\n", "b": b"id,url\r\n2,y\r\n3,x\r\n", "c": b"url,id\nz,4\n", "d": b""}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    out, err = cli.run("dedupe", "-q", *CSV, *(tmp_path / name for name in "abcd"), code=2)
    assert out == b"id,url\n1,x\n2,y\r\n"
    assert err == (
        f"urifilter: {tmp_path / 'c'}: its columns are not those of the first file: read it by a command of its own\n"
    )


@pytest.mark.parametrize("command", ["dedupe", "add", "claim", "import news"])
def test_a_mistyped_field_makes_no_filter(there, tmp_path, command):
    """It is told with the names that there are, before a filter is made."""
    (tmp_path / "links.csv").write_bytes(b"id,url\n1,x\n")
    err = cli.run(*command.split(), "--csv", "--field", "ulr", tmp_path / "links.csv", code=2)[1]
    more = "urifilter: nothing could be read, so filter 'news' was not made\n" if "import" in command else ""
    assert err == f"urifilter: {tmp_path / 'links.csv'}: its header has no field ulr: id, url\n{more}"
    assert there.ask("keys") == []


@pytest.mark.parametrize("command", ["dedupe", "add", "check", "claim", "commit", "forget", "release", "digest"])
def test_bad_records(command):
    """Each command tells them by line and why, takes the others, and exits with 2; one open quote swallows the rest."""
    make()
    data = b'id,url\n1,a\nbad\n2,"b"x\n3,c\n"4,d\n5,e\n'
    out, err = cli.run(command, *(() if command == "digest" else ("--filter", "precise")), *CSV, given=data, code=2)
    told = [line for line in err.splitlines() if line.startswith("urifilter: ")]
    assert told == [
        "urifilter: stdin: line 3 is left out: it has 1 column, and not 2",
        "urifilter: stdin: line 4 is left out: it is no CSV: ',' expected after '\"'",
        "urifilter: stdin: the record of lines 6 to 7 is left out: its quote is never closed",
    ]
    if command in ("dedupe", "claim"):
        assert out == b"id,url\n1,a\n3,c\n"


def test_very_many_bad_records():
    """The first hundred are told one by one, and how many others there are; --json has them all."""
    out, err = cli.run("add", "--json", *JSONL, given=b"{}\n" * 250 + b'{"url":"a"}\n', code=2)
    assert (json.loads(out)["bad"], json.loads(out)["new"]) == (250, 1)
    told = [json.loads(line)["error"] for line in err.splitlines()]
    assert len(told) == 101
    assert told[99] == "stdin: line 100 is left out: it has no field url"
    assert told[100] == "150 more were left out"


WRONG = {
    ("--csv",): "--csv needs --field NAME, or --column N",
    ("--csv", "--field", "a", "--column", "1"): "--csv needs --field NAME, or --column N",
    ("--jsonl",): "--jsonl needs --field NAME",
    ("--jsonl", "--column", "1"): "JSON lines have fields, and no columns",
    ("--jsonl", "--field", "a", "--delimiter", ";"): "JSON lines have fields, and no columns",
    ("--csv", "--jsonl", "--field", "a"): "--csv and --jsonl exclude each other",
    ("-0", "--csv", "--field", "a"): "-0 ends lines with a NUL, and --csv reads records",
    ("--null", "--jsonl", "--field", "a"): "-0 ends lines with a NUL, and --jsonl reads records",
    ("--field", "a"): "--field needs --csv or --jsonl: it is not guessed",
    ("--column", "1"): "--column needs --csv: it is not guessed",
    ("--delimiter", ";"): "--delimiter needs --csv: it is not guessed",
    ("--csv", "--field", "a", "--field", "b"): "--field was given 2 times: an item is the text of one field",
    ("--csv", "--column", "1", "--column", "2"): "--column was given 2 times",
    ("--csv", "--column", "0"): "0 is not in the range",
    ("--csv", "--field", "a", "--delimiter", "ab"): "is not one character of ASCII",
    ("--csv", "--field", "a", "--delimiter", '"'): "is not one character of ASCII",
    ("--csv", "--field", "a", "--delimiter", "§"): "is not one character of ASCII",
}


@pytest.mark.parametrize("options", WRONG)
@pytest.mark.parametrize("command", ["dedupe", "digest", "import"])
def test_options_that_do_not_go_together(there, command, options):
    """They are refused before anything is read, made or printed."""
    name = ["news"] if command == "import" else []
    out, err = cli.run(command, *name, *options, given=b"a\n", code=2)
    assert WRONG[options] in err
    assert (out, there.ask("keys")) == (b"", [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dedupe", "--normalize", "loose"), "--normalize needs --temporary"),
        (("dedupe", "--rules", "rules.toml"), "--rules needs --temporary"),
        (("dedupe", "--count"), "--count needs --temporary"),
        (("dedupe", "--count", "--temporary", "--max-age", "1"), "--count counts all lines"),
        (("digest", "--jsonl", "--field", "a", "https://a/"), "an option says how stdin is read"),
        (("import", "news", "--set", "key", "--trim"), "--set reads a set, and an option says how files are read"),
    ],
)
def test_options_for_other_uses(arguments, words):
    """The message says what they go with."""
    assert words in cli.run(*arguments, given=b"a\n", code=2)[1]


def test_fingerprints_of_a_field():
    """``fingerprint`` reads fields as the other commands do."""
    pytest.importorskip("scrapy")
    for form in ("csv", "jsonl"):
        options, data = FORMS[form]
        assert cli.run("fingerprint", *options, given=data) == cli.run("fingerprint", given=FORMS["plain"][1])


def test_trimmed_lines():
    """What is printed is what was compared: the next command knows it without --trim. A record stands as it is."""
    make()
    printed = dedupe("--trim", "--filter", "precise", given=b" a\n\ta \r\nb\n \n\n")
    assert printed == b"a\nb\n\n"
    assert cli.run("check", "--filter", "precise", given=printed)[0] == b"seen\ta\nseen\tb\nseen\t\n"
    given = b"id,url\n1, a \n2, c \n"
    assert dedupe("--trim", *CSV, "--filter", "precise", given=given) == b"id,url\n2, c \n"


def test_a_temporary_filter_with_a_normalisation(there, tmp_path):
    """Spellings of one page are one line, the first of which is printed; nothing is left behind."""
    given = b"http://www.example.com/a/\nhttps://example.com/a\nhttps://example.com/b\n"
    out = dedupe("--temporary", "--normalize", "loose", given=given)
    assert out == b"http://www.example.com/a/\nhttps://example.com/b\n"
    assert dedupe("--temporary", given=given) == given
    (tmp_path / "rules.toml").write_text('[[rule]]\nhost = "example.com"\ndrop = ["sid"]\n')
    given = b"https://example.com/a?sid=1\nhttps://example.com/a?sid=2\n"
    own = ("--temporary", "--normalize", "sorted", "--rules", tmp_path / "rules.toml")
    assert dedupe(*own, given=given) == b"https://example.com/a?sid=1\n"
    assert dedupe(*own, "--count", given=given) == b"2\thttps://example.com/a?sid=1\n"
    assert "rules" in cli.run("dedupe", "--temporary", "--rules", tmp_path / "rules.toml", given=given, code=2)[1]
    assert there.ask("keys") == []


def test_counts(there):
    """At the end each different line stands where it came first, behind its count; no server is asked."""
    out, err = cli.run("dedupe", "--temporary", "--count", "--redis", "redis://127.0.0.1:1", given=b"b\na\nb\n\nb\n")
    assert (out, err) == (b"3\tb\n1\ta\n1\t\n", "5 lines: 3 different\n")
    given = b'id,url\n1,http://a.com\n2,http://A.com/\n3,"b\n"\n'
    out, err = cli.run("dedupe", "--temporary", "--count", "--normalize", "whatwg", *CSV, "--json", given=given)
    assert out == b'count,id,url\n2,1,http://a.com\n1,3,"b\n"\n'
    assert (json.loads(err)["lines"], json.loads(err)["new"], json.loads(err)["field"]) == (3, 2, "url")
    counted = functools.partial(dedupe, "--temporary", "--count")
    out = counted(*CSV, given=FORMS["csv"][1])
    assert out.startswith(codecs.BOM_UTF8 + b'count,title,url\r\n1,"a,\r\n""b""",https://example.com/0\r\n')
    out = counted(*FORMS["column"][0], given=FORMS["column"][1] * 2)
    assert out == b"".join(b"2\tt\t%s\n" % url for url in URLS)
    assert counted(*JSONL, given=b'{"url": "a", "n": 1}\n{"url": "a"}\n') == b'2\t{"url": "a", "n": 1}\n'
    assert counted("-0", given=b"a\nb\0c\0a\nb\0") == b"2\ta\nb\x001\tc\0"
    many = b"".join(b"%d\n" % (number % 9000) for number in range(27_000))
    assert counted(given=many) == b"".join(b"3\t%d\n" % number for number in range(9000))


def test_utf_16_is_printed_as_utf_8():
    """Lines and records alike; the mark goes, the other characters stay."""
    text = 'titel,url\r\n"größer,\r\n",https://a.example/ü\r\n'
    assert dedupe(*CSV, given=text.encode("utf-16")) == text.encode()
    out, _ = cli.run("check", given="https://a.example/ü\r\n".encode("utf-16"))
    assert out == "seen\thttps://a.example/ü\n".encode()


@pytest.mark.slow
def test_counting_is_stopped_by_a_signal():
    """It has printed no line then, and nothing remembers them."""
    process = cli.start("dedupe", "--temporary", "--count", *CSV)
    cli.feed(process, b"url\n" + b"a\n" * 100)
    assert process.stdout.readline() == b"count,url\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 128 + signal.SIGTERM


#: Runs a command, and says its peak memory in KiB. A process that the tests start has theirs as its peak, before it is
#: another program.
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.slow
def test_memory_of_counts(tmp_path):
    """As the page says: at most 250 bytes a different line, and its own; more lines than the last growth of a dict."""
    count, line = 700_000, b"https://example.com/some/longer/path/of/a/page/%07d"
    peaks = []
    for number in (1, count):
        with (tmp_path / "urls").open("wb") as file:
            file.writelines(line % each + b"\n" for each in range(number))
        command = [sys.executable, "-m", "urifilter_redis.cli", "dedupe", "-q", "--temporary", "--count"]
        measured = [sys.executable, "-c", MEASURED, *command, tmp_path / "urls"]
        with (tmp_path / "out").open("wb") as out:
            told = subprocess.run(measured, stdout=out, stderr=subprocess.PIPE, check=True)
        peaks.append(1024 * int(told.stderr))
    assert 100 < (peaks[1] - peaks[0]) / count < 250 + len(line % 0)


def test_items_with_newlines_are_claimed():
    """A field may have one: the record is printed, ``reclaim --json`` tells the item, and that is committed."""
    make()
    given = b'id,url\n1,"a\nb"\n'
    assert cli.run("claim", "-q", *CSV, "--filter", "precise", given=given)[0] == given
    cli.run("release", "-q", *CSV, "--filter", "precise", given=given)
    out, _ = cli.run("reclaim", "-q", "--json", "--filter", "precise")
    assert json.loads(out)["item"] == "a\nb"
    told = cli.run("commit", "--jsonl", "--field", "item", "--filter", "precise", given=out)[1]
    assert told == "1 record, field item: 1 final now, 0 were before (filter precise)\n"
    assert cli.run("check", "-0", "--filter", "precise", given=b"a\nb\0")[0] == b"seen\ta\nb\0"


MANY = [b"https://example.com/some/longer/path/%d" % number for number in range(15_000)]


def many_records() -> bytes:
    """Records of CSV; a field of each third one has a newline."""
    return b"id,url\n" + b"".join(
        b"%s,%s\n" % (b'"%d\n"' % number if number % 3 == 0 else b"%d" % number, url) for number, url in enumerate(MANY)
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_lose_no_record(tmp_path, started, number):
    """What the reader may not have read is printed by the next run, whole."""
    make()
    file = tmp_path / "links.csv"
    file.write_bytes(many_records())
    process = started("dedupe", *CSV, "--filter", "precise", file)
    printed = process.stdout.read(10_000)
    process.send_signal(number)
    process.stdout.close()
    assert process.wait(60) == 128 + number
    assert b"may not have been read are new again" in process.stderr.read()
    second = dedupe(*CSV, "--filter", "precise", file)
    assert {*(b"id,url\n" + printed).split(b"\n"), *second.split(b"\n")} >= {*many_records().split(b"\n")}
    assert dedupe(*CSV, "--filter", "precise", file) == b"id,url\n"


@pytest.mark.slow
def test_records_come_out_as_they_come_in():
    """The header, and each record, is printed before the next one comes; a quote that is open is waited for."""
    process = cli.start("dedupe", "-q", *CSV)
    for some, wanted in ((b"id,url\n", 1), (b"1,a\n", 1), (b'"2\n', 0), (b'x",b\n', 2)):
        cli.feed(process, some)
        for _ in range(wanted):
            assert process.stdout.readline()
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 0


def imported(*arguments, **options) -> dict:
    """Run ``import`` into a filter, and return its summary."""
    return cli.json_of("import", "news", *arguments, **options)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_import_of_csv_goes_on(tmp_path, number, packed):
    """Killed, the same command goes on between two records, with the header of the file; another field begins anew."""
    urls = [b"https://example.com/%d" % number for number in range(150_000)]
    file = tmp_path / "links.csv"
    some = (b'"%d\n"' % place if place % 7 == 0 else b"%d" % place for place in range(len(urls)))
    data = codecs.BOM_UTF8 + b"id,url\r\n" + b"".join(b"%s,%s\r\n" % pair for pair in zip(some, urls, strict=True))
    file.write_bytes(gzip.compress(data, 1) if packed else data)
    UriFilter.create("news", capacity=200_000, error_rate=1e-9).close()
    process = cli.start("import", "news", *CSV, file, stdin=subprocess.DEVNULL)
    with UriFilter.open("news") as news:
        wait_until(lambda: news.inserted() > 45_000, "nothing was imported")
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode in (-number, 128 + number)
        found = imported(*CSV, file)
        assert 0 < found["resumed"] < found["items"] == 150_000
        assert (found["bad"], found["field"]) == (0, "url")
        assert sum(news.contains_many(urls)) == news.inserted() == 150_000


@pytest.mark.slow
def test_import_by_another_field(tmp_path):
    """A note of one field does not count for another one; digests are read from a field, too."""
    file = tmp_path / "links.csv"
    file.write_bytes(b"id,url\n" + b"".join(b"i%d,u%d\n" % (number, number) for number in range(60_000)))
    UriFilter.create("news", capacity=200_000, error_rate=1e-9).close()
    process = cli.start("import", "news", *CSV, file)
    with UriFilter.open("news") as news:
        wait_until(lambda: news.inserted() > 15_000, "nothing was imported")
        process.kill()
        process.communicate()
        found = imported("--csv", "--field", "id", file)
        assert (found["resumed"], found["new"], found["items"]) == (0, 60_000, 60_000)
    digest = cli.json_of("digest", "--filter", "news", given=b"x")["digest"]
    given = b'{"d":"%s"}\n{"d":"x"}\n' % digest.encode()
    with UriFilter.open("news") as news:
        seed = news.config.seed
    of_digests = ("--digests", "--hash", "mmh3", "--seed", seed, "--jsonl", "--field", "d")
    found = imported(*of_digests, given=given, code=2)
    assert (found["new"], found["bad"]) == (1, 1)
    assert cli.run("check", "--filter", "news", given=b"x")[0] == b"seen\tx\n"
