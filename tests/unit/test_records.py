"""Records: lines, of which the item is the text; of CSV and JSON lines it is that of the field alone.

What is printed are the bytes of the file. Reading that begins at a place between records goes on exactly there.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import signal
import zlib
from itertools import chain

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from urifilter_redis.cli import lines, records
from urifilter_redis.cli.lines import placed_windows, why_unreadable, windows_of
from urifilter_redis.cli.records import PLAIN, Form, Place, item_of
from urifilter_redis.cli.signals import Interrupted, Signals

BOM = codecs.BOM_UTF8
CSV, JSONL = Form("csv", field="url"), Form("jsonl", field="url")
SECOND = Form("csv", column=2)


def read(form: Form, data: bytes, chunk: int = 1 << 20, most: int = 4000):
    """Return the items, the records, the headers and the messages of a stream that comes in chunks."""
    told: list[str] = []
    found = form.records(told.append)
    found.begin("stream", Place())
    chunks = (data[at : at + chunk] for at in range(0, len(data), chunk))
    windows = [window for window, _ in lines._windows(lines._pieces(chunks, Place(), form, most), found)]
    items, printed = ([*chain.from_iterable(getattr(each, key) for each in windows)] for key in ("items", "records"))
    return items, printed, [each.header for each in windows if each.header is not None], told


def csv_of(rows, end="\n", quoting=csv.QUOTE_MINIMAL, delimiter=",") -> bytes:
    text, rows = io.StringIO(newline=""), list(rows)
    if any("\r" in field for row in rows for field in row):  # before Python 3.13 the writer leaves such a field bare
        quoting = csv.QUOTE_ALL
    csv.writer(text, lineterminator=end, quoting=quoting, delimiter=delimiter).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def joined(some) -> bytes:
    return b"".join(each + b"\n" for each in some)


#: What a field may have: all that has a meaning somewhere, and any other text.
TEXTS = st.text(st.sampled_from('",;\n\r\t \\ab\ufeff\u2028\u0085é😀{}[]') | st.characters(), max_size=12)
URLS = st.lists(st.tuples(TEXTS, TEXTS), max_size=8)
CUTS = {"chunk": st.integers(1, 40), "most": st.integers(1, 5)}


@given(rows=URLS, end=st.sampled_from(["\n", "\r\n"]), all_quoted=st.booleans(), **CUTS)
@example(rows=[("a\nb", "https://a/"), ("", "")], end="\r\n", all_quoted=False, chunk=1, most=1)
@example(rows=[("", "\r0")], end="\n", all_quoted=False, chunk=1, most=1)
def test_csv_has_the_items_of_plain_lines(rows, end, all_quoted, chunk, most):
    """However a stream is cut, the item is that of a line of the field's text; the printed bytes are those read."""
    rows = [(title.lstrip("\ufeff"), url) for title, url in rows]  # a mark before a record is none of its bytes
    quoting = csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL
    data = csv_of([("title", "url"), *rows], end, quoting)
    items, printed, headers, told = read(CSV, data, chunk, most)
    assert items == [item_of(url.encode("utf-8", "surrogatepass")) for _, url in rows]
    plain = [item for item in items if b"\n" not in item]
    assert read(PLAIN, joined(plain), chunk, most)[0] == plain
    assert joined([*headers, *printed]) == data
    assert told == []


@given(rows=URLS, **CUTS)
@example(rows=[("", "\ufeffhttps://a/\r"), ("a", "\ufeff\r")], chunk=1, most=1)
def test_json_lines_have_their_strings(rows, chunk, most):
    """Likewise of JSON lines, with escapes and without; but the item is the string as it stands, to its last byte."""
    written = [
        json.dumps({"title": title, "url": url}, ensure_ascii="a" in title).encode("utf-8", "surrogatepass")
        for title, url in rows
    ]
    items, printed, headers, told = read(JSONL, joined(written), chunk, most)
    assert items == [url.encode("utf-8", "surrogatepass") for _, url in rows]
    assert (printed, headers, told) == (written, [], [])


@given(
    data=st.lists(st.sampled_from([b'"', b",", b"\n", b"\r", b"a", b" ", b'""', b"a,b\n", b'"a\nb",c\n', BOM])).map(
        b"".join
    ),
    **CUTS,
)
@pytest.mark.parametrize("form", [CSV, SECOND], ids=["header", "no header"])
def test_a_cut_changes_nothing(form, data, chunk, most):
    """Whatever the bytes are, right or wrong, they are read as in one piece: items, records, headers and messages."""
    data = b"title,url\n" + data

    def told_of(*cuts: int):
        try:
            return read(form, data, *cuts)
        except OSError as error:
            return error.strerror

    assert told_of(chunk, most) == told_of()


#: Files of plain lines.
LINES = {
    "with a newline": b"a\nbb\r\n\nccc\ndddd\n" * 7,
    "without a newline": b"\nlast",
    "short after a newline": b"\n\xef\xbb\xbf",
    "byte order mark": b"\xef\xbb\xbfa\nb\n\xef\xbb\xbf\xef\xbb\xbfc\r\r\n",
    "too long lines": b"x" * 50 + b"\na\n" + b"y" * 90 + b"\nb\nc\n" + b"z" * 41,
    "empty": b"",
}
#: Files of each form, with all that may stand between and within records.
FILES = {
    "csv": (
        CSV,
        [
            BOM + b'title,url\r\n"a\r\n,",1\r\n\r\nx,2\nbad\nx,"3"\n"y\ny\ny",4',
            b'"title","url"\n' + b"x,5\n" * 9 + b'"' + b"z\n" * 40 + b'",6\nx,7\n' + b"y" * 90 + b",8\nx,9\n",
            b"title,url",
            b"",
            b'title,url\nx,10\n"open,11\nx,12\n',
        ],
    ),
    "csv without a header": (SECOND, [b'x,1\n"y\n",2\nbad\nx,3\n', b"\nx,4,5\n", b"x,6"]),
    "jsonl": (
        JSONL,
        [BOM + b'{"url":"1"}\r\n\n{"url":2}\n {"x":1,"url":"3"}\n' + b"x" * 90 + b"\n", b'[]\n{"url":"4"}'],
    ),
    "null": (Form(null=True), [b"a\nb\0\0c\r\0" + b"x" * 90 + b"\0d", BOM + b"e\0"]),
    **{f"lines, {name}": (PLAIN, [content]) for name, content in LINES.items()},
    "lines of many files": (PLAIN, [*LINES.values()]),
    "trim": (Form(trim=True), [b" a\n\t\nb \r\n " + BOM + b" c\n", b"d"]),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("chunk", [1, 7, 39])
@pytest.mark.parametrize("kind", FILES)
def test_reading_goes_on_at_every_place(tmp_path, monkeypatch, kind, chunk, packed):
    """From each place on come the remaining items, records and messages. A header before it is read, not printed.

    The places of plain lines have the right numbers of lines.
    """
    monkeypatch.setattr(lines, "CHUNK", chunk)
    if not packed:  # what is unpacked comes in one chunk, which may not be longer than a record
        monkeypatch.setattr(records, "RECORD_LIMIT", 40)
    form, contents = FILES[kind]
    paths = []
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(gzip.compress(content) if packed else content)
        paths.append(str(tmp_path / str(number)))
    told: list[str] = []
    found = [(window, place, len(told)) for window, place in placed_windows(paths, told.append, form=form, most=3)]
    assert len(found) > 1 or form is PLAIN
    for number, (_, place, before) in enumerate(found):
        again: list[str] = []
        rest = [window for window, _ in placed_windows(paths, again.append, begin=place, form=form, most=3)]
        for key in ("items", "records"):
            wanted = [*chain.from_iterable(getattr(each, key) for each, *_ in found[number + 1 :])]
            assert [*chain.from_iterable(getattr(each, key) for each in rest)] == wanted
        assert again == told[before:]
        assert [each.header for each in rest if each.header is not None] == []
        if form is PLAIN:
            passed = contents[place.file][: place.offset]
            assert passed.count(b"\n") + (passed[-1:] != b"\n") == place.lines
    assert [*placed_windows(paths, told.append, begin=Place(len(paths)), form=form)] == []


def test_places_of_every_kind_of_record(tmp_path, monkeypatch):
    """What the test above reads: the items of the right records, and a message for each of the others."""
    monkeypatch.setattr(records, "RECORD_LIMIT", 40)
    form, contents = FILES["csv"]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    told: list[str] = []
    windows = [*windows_of([str(tmp_path / str(number)) for number in range(5)], told.append, form=form)]
    items = [*chain.from_iterable(window.items for window in windows)]
    assert items == [b"1", b"2", b"3", b"4", *[b"5"] * 9, b"7", b"9", b"10"]
    assert [message.partition(": ")[2] for message in told] == [
        "line 6 is left out: it has 1 column, and not 2",
        "the record of lines 11 to 51 is longer than 0 MiB and left out",
        "line 53 is longer than 0 MiB and left out",
        "the record of lines 3 to 4 is left out: its quote is never closed",
    ]
    assert windows[0].header == BOM + b"title,url\r"


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_records_over_the_limit(monkeypatch, chunk):
    """Left out with their first line, whatever quotes stand in them: the records behind them are read as they stand."""
    monkeypatch.setattr(records, "RECORD_LIMIT", 40)
    long = b"x" * 60
    for record, last in (
        (long + b",1", 2),
        (b'"' + long + b'""",1', 2),
        (b'"a""\n' + long + b'\nb",1', 4),
        (b'"a\n' + b'b""\n,"",\n' * 20 + b'",1', 43),
        (b'"' + long + b'\nb","' + long + b'\nc\n"', 5),
    ):
        items, printed, _, told = read(CSV, b"title,url\n" + record + b'\nx,2\n"y\ny",3\n', chunk)
        assert (items, printed) == ([b"2", b"3"], [b"x,2", b'"y\ny",3'])
        where = "line 2 is" if last == 2 else f"the record of lines 2 to {last} is"
        assert told == [f"stream: {where} longer than 0 MiB and left out"]
    items, _, _, told = read(JSONL, b'{"url":"' + long + b'"}\n{"url":"1"}\n', chunk)
    assert items in ([b"1"], [long, b"1"])  # a line that is whole in one chunk is never over the true limit
    assert read(JSONL, b'{"url":"' + long + b'"}\n{"url":"1"}\n', 1)[::3] == (
        [b"1"],
        ["stream: line 1 is longer than 0 MiB and left out"],
    )


def test_a_field_of_megabytes():
    """The csv module's own limit of 128 KiB does not count."""
    field = "x" * (1 << 21)
    data = csv_of([("title", "url"), (field, "https://a/"), ("a\nb" * 70_000, field)])
    assert read(CSV, data)[0] == [b"https://a/", field.encode()]


BAD_JSON = {
    b"nope": "it is no JSON: Expecting value, at character 1",
    b'{"url":"a"} x': "something stands behind its JSON, at character 12",
    b'{"url":"a"': "it is no JSON: Expecting ',' delimiter, at character 11",
    b'{"url":"a\tb"}': "it is no JSON: Invalid control character at, at character 10",
    b'["url"]': "it is no JSON object",
    b'"url"': "it is no JSON object",
    b"{}": "it has no field url",
    b'{"url":null}': "url is no string",
    b'{"url":5}': "url is no string",
    b'{"url":1.5}': "url is no string",
    b'{"url":NaN}': "url is no string",
    b'{"url":["a"]}': "url is no string",
    b'{"url":"a","url":7}': "url is no string",
    b'{"url":"\xff"}': "byte 9 of it is not UTF-8",
    b'{"url":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}": "it is nested too deeply",
}


@pytest.mark.parametrize("line", BAD_JSON, ids=lambda line: line[:12])
def test_bad_json_lines(line):
    """Each is told with its number and why, and the others are read."""
    items, _, _, told = read(JSONL, b'{"url":"1"}\n' + line + b'\n{"url":"2"}\n')
    assert items == [b"1", b"2"]
    assert told == [f"stream: line 2 is left out: {BAD_JSON[line]}"]


@pytest.mark.parametrize(
    ("line", "item"),
    [
        (b'{"url":7,"url":"last"}', b"last"),
        (b'{"x":%s,"url":"a"}' % (b"9" * 5000), b"a"),
        (b'{"x":[NaN,-Infinity,1e999],"url":"a"}', b"a"),
        (rb'{"url":"\ud800"}', b"\xed\xa0\x80"),
        (rb'{"url":"\ud83d\ude00"}', "😀".encode()),
        (b'\t{"url" : "a"}  \r', b"a"),
        (b'{"url":""}', b""),
    ],
)
def test_odd_json_lines(line, item):
    """The last of equal names counts, and what other fields have does not matter; the bytes are printed unchanged."""
    assert read(JSONL, line + b"\n") == ([item], [line], [], [])


BAD_CSV = {
    b"a": "line 2 is left out: it has 1 column, and not 2",
    b"a,b,c": "line 2 is left out: it has 3 columns, and not 2",
    b'"a"b,c': "line 2 is left out: it is no CSV: ',' expected after '\"'",
    b"a\rb,c": "line 2 is left out: a carriage return stands within a field that has no quotes",
    b'"a\nb"c,d': "the record of lines 2 to 3 is left out: it is no CSV: ',' expected after '\"'",
}


@pytest.mark.parametrize("record", BAD_CSV)
def test_bad_csv(record):
    """Each is told with its lines and why, and the others are read."""
    items, _, _, told = read(CSV, b"title,url\nx,1\n".replace(b"x,1\n", b"") + record + b"\nx,2\n")
    assert items == [b"2"]
    assert told == [f"stream: {BAD_CSV[record]}"]


def test_a_quote_that_is_never_closed():
    """It swallows the rest: told with the first line, in the first record of a file, too."""
    data = b'title,url\nx,1\n"y,2\n' + b"x,3\n" * 5
    items, _, _, told = read(CSV, data)
    assert items == [b"1"]
    assert told == ["stream: the record of lines 3 to 8 is left out: its quote is never closed"]
    with pytest.raises(OSError, match="columns cannot be read: the record of lines 1 to 2 is left out: its quote is"):
        read(CSV, b'"title,url\nx,1\n')


HEADS = {
    "named": (CSV, b"title,url\nx,1\n", [b"1"]),
    "a mark and \\r": (CSV, BOM + b"url,title\r\n1,x\r\n", [b"1"]),
    "a mark and quotes": (CSV, BOM + b'"url","title"\r\n"1",x\r\n', [b"1"]),
    "two marks": (CSV, BOM * 2 + b"url\n1\n" + BOM + b'"2"\n', [b"1", b"2"]),
    "a name twice": (CSV, b"url,url\n1,2\n", [b"2"]),
    "only a header": (CSV, b"title,url", []),
    "blank lines": (CSV, b"\n\r\ntitle,url\n\nx,1\n\r\n", [b"1"]),
    "one column": (CSV, b'url\n\n""\n1\n', [b"", b"1"]),
    "a header of two lines": (Form("csv", field="a\nb"), b'"a\nb",c\n1,2\n', [b"1"]),
    "a tab": (Form("csv", field="url", delimiter="\t"), b'title\turl\n5" disk,\t1\n', [b"1"]),
    "no header": (SECOND, b'title,url\n"x",1\n', [b"url", b"1"]),
    "bytes that are no UTF-8": (Form("csv", field="\udcff"), b"\xff,b\n\xfe\xfd,x\n", [b"\xfe\xfd"]),
    "white space": (Form("csv", field="url", trim=True), b"title, url\nx, 1 \n", [b"1"]),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads(kind):
    """The first record says where the items are: by name, or by number; marks and carriage returns do not count."""
    form, data, wanted = HEADS[kind]
    items, printed, headers, told = read(form, data, 3, 1)
    assert (items, told) == (wanted, [])
    assert len(headers) == (form.column is None)
    kept = [line for line in data.replace(b"\n" + BOM, b"\n").split(b"\n") if line.strip(b"\r")]
    assert b"\n".join([*headers, *printed]) == b"\n".join(kept)


def test_columns_must_agree(tmp_path):
    """A file whose columns are not those of the first that can be read is left out, as one without the field is."""
    contents = [b"title,href\nx,0\n", b"title,url\nx,1\n", b"url,title\n2,x\n", BOM + b'"title","url"\r\nx,3\r\n']
    paths = []
    for number, content in enumerate(contents):
        paths.append(str(tmp_path / f"{number}.csv"))
        (tmp_path / f"{number}.csv").write_bytes(content)
    told: list[str] = []
    windows = [*windows_of([*paths, str(tmp_path / "none")], told.append, form=CSV)]
    assert [*chain.from_iterable(window.items for window in windows)] == [b"1", b"3"]
    assert [window.header for window in windows if window.header is not None] == [b"title,url"]
    assert told == [
        f"{paths[0]}: its header has no field url: title, href",
        f"{paths[2]}: its columns are not those of the first file: read it by a command of its own",
        f"{tmp_path / 'none'}: No such file or directory",
    ]
    assert why_unreadable(paths[0], CSV) == "its header has no field url: title, href"
    assert why_unreadable(paths[0], Form("csv", column=3)) == "there is no column 3: its first record has 2 columns"
    assert why_unreadable(paths[0], JSONL) == why_unreadable(paths[2], CSV) == ""
    told = []
    assert [*windows_of(paths[1:2], told.append, form=Form("csv", column=3))] == []
    assert told == [f"{paths[1]}: there is no column 3: its first record has 2 columns"]


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_with_a_mark(tmp_path, monkeypatch, encoding, chunk):
    """It is read as UTF-8, from each place on, too; half a surrogate pair is a character; a half character is told."""
    monkeypatch.setattr(lines, "CHUNK", chunk)
    text = "https://a.example/ü\r\nhttps://b.example/😀\n\ud800\nlast"
    data = "\ufeff".encode(encoding) + text.encode(encoding, "surrogatepass")
    path = tmp_path / "urls"
    path.write_bytes(data)
    wanted = [line.rstrip("\r").encode("utf-8", "surrogatepass") for line in text.split("\n")]
    found = [*placed_windows([str(path)], pytest.fail, most=1)]
    assert [*chain.from_iterable(window.items for window, _ in found)] == wanted
    for number, (_, place) in enumerate(found):
        rest = [window for window, _ in placed_windows([str(path)], pytest.fail, begin=place, most=1)]
        assert [*chain.from_iterable(window.items for window in rest)] == wanted[number + 1 :]
    path.write_bytes(gzip.compress(data[:-1]))
    told: list[str] = []
    assert [*chain.from_iterable(window.items for window in windows_of([str(path)], told.append))] == wanted[:-1]
    assert told == [f"{path}: it ends within a character of UTF-16: the lines up to there were read"]


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_a_link_that_begins_as_utf_16_does(tmp_path, monkeypatch, mark, chunk):
    """A stranger's link makes no other items of the lines behind it, also where a NUL ends a line."""
    monkeypatch.setattr(lines, "CHUNK", chunk)
    path = tmp_path / "urls"
    items = [mark + b"evil", *(b"https://good.example/%d" % number for number in range(99)), b"\xe6"]
    for end, form, last in ((b"\n", PLAIN, b""), (b"\0", Form(null=True), b""), (b"\n", PLAIN, b"late\0NUL")):
        items[-1] += last
        path.write_bytes(end.join(items))
        found = windows_of([str(path)], pytest.fail, form=form)
        assert [*chain.from_iterable(window.items for window in found)] == items


def test_utf_16_that_begins_with_no_ascii(tmp_path):
    """The first line end shows it."""
    path = tmp_path / "urls"
    path.write_bytes(("\u30c6" * 400 + "\nhttps://a.example/").encode("utf-16"))
    found = windows_of([str(path)], pytest.fail)
    assert [*chain.from_iterable(window.items for window in found)][1:] == [b"https://a.example/"]


def test_lines_that_end_with_nul():
    """All other bytes count; short ones do not look like UTF-16."""
    null = Form(null=True)
    data = b"a\0b\0\0 \r\n\0" + BOM + b"c\0d"
    items = [b"a", b"b", b"", b" \r\n", BOM + b"c", b"d"]
    assert read(null, data, 2, 2)[0] == items
    assert [*lines._unpacked(iter([data]), null)] == [data]
    with pytest.raises(OSError, match="it is UTF-16 without"):
        next(lines._unpacked(iter([data]), PLAIN))


@given(pieces=st.lists(st.sampled_from([b" ", b"\t", b"\r", b"\x0b", b"\xc2\xa0", BOM, b"a"])))
def test_trimmed_items_are_items_of_themselves(pieces):
    """White space of ASCII goes from both ends, other space stays; a printed item is read as the same item again."""
    trim = Form(trim=True)
    (item,) = trim.items([b"".join(pieces)])
    assert trim.items([item]) == PLAIN.items([item]) == [item]
    assert item == item.strip()
    assert (b"\xc2\xa0" in item) == (b"\xc2\xa0" in pieces)


class Interrupting:
    """Unpacks a gzip file, and a signal comes meanwhile."""

    def __init__(self) -> None:
        self._unpacks = zlib.decompressobj(wbits=31)

    def __getattr__(self, name):
        return getattr(self._unpacks, name)

    def decompress(self, piece: bytes) -> bytes:
        signal.raise_signal(signal.SIGINT)
        return self._unpacks.decompress(piece)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_few_compressed_bytes_that_stand_for_many(pack):
    """They are read a chunk at a time, so that memory does not grow with them."""
    data = b"\n" * (8 * lines.CHUNK + 5)
    chunks = [*lines._unpacked(iter([pack(data)]), PLAIN)]
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) <= lines.CHUNK
    for end in (b"", b"\0" * 99):
        parts = pack(data) + pack(b"a\n") + pack(data) + end
        assert b"".join(lines._unpacked(iter([parts]), PLAIN)) == data + b"a\n" + data


def test_a_signal_while_a_file_is_unpacked(tmp_path, monkeypatch):
    """It is no damage of the file, behind which an import would go on."""
    (tmp_path / "urls.gz").write_bytes(gzip.compress(b"a\nb\n"))
    monkeypatch.setitem(lines._COMPRESSED, b"\x1f\x8b\x08", Interrupting)
    told: list[str] = []
    with Signals() as signals, pytest.raises(Interrupted), signals.allowed():
        list(windows_of([str(tmp_path / "urls.gz")], told.append))
    assert told == []


MARKS = st.sampled_from([b"\xef\xbb\xbf", b"\xef", b"\xbb\xbf", b"\r", b"\n", b"a", b"\0", b" "])


@given(pieces=st.lists(MARKS), chunk=st.integers(1, 9))
def test_an_item_is_the_item_of_itself(pieces, chunk):
    """However a stream is cut, its items are those of its lines; a printed item is read as the same item again."""
    stream = b"a" + b"".join(pieces)

    items, *_, told = read(PLAIN, stream, chunk, 3)
    assert items == [*map(item_of, stream.removesuffix(b"\n").split(b"\n"))]
    assert read(PLAIN, joined(items), chunk, 3) == (items, items, [], [])
    assert told == []
    assert not any(item.startswith(b"\xef\xbb\xbf") or item.endswith(b"\r") for item in items)
