"""The records of files: what a line, a record of CSV or an object of JSON lines is, and which item it has.

The item is the text of one field alone, so one URL is one item in each of these forms. A record is printed as it
stands.
"""

from __future__ import annotations

import codecs
import csv
import errno
import io
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The most bytes of a record, and of a line. A longer one is reported and left out.
RECORD_LIMIT = 16 << 20

#: Stands for lines over the limit behind which a quote is open.
QUOTE = b'"'

#: White space of JSON.
WHITE = b" \t\r\n"

_MARKS = re.compile(rb"(?:\xef\xbb\xbf)+")
_SPACE_AND_MARKS = re.compile(rb"(?:\s|\xef\xbb\xbf)+")

#: The most columns of a header that a message names.
NAMED = 10

Kind = Literal["lines", "csv", "jsonl"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two records of some files.

    Attributes:
        file: the number of the file, from 0.
        offset: the bytes of that file before the place; of a file that is converted those that came of it.
        lines: the lines of that file before the place.
    """

    file: int = 0
    offset: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of a file that follow each other, without their ends.

    Attributes:
        lines: the lines.
        begin: the place before them.
        end: the place after them.
        too_long: whether the first one is over the limit. ``QUOTE`` stands in its place if it has an odd number of
            quotes, else nothing.
    """

    lines: list[bytes]
    begin: Place
    end: Place
    too_long: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """Some records of files. Without items it says that the next ones may have to be waited for.

    Attributes:
        items: the item of each record.
        records: the records as they are printed, without the end of a line; of plain lines the items.
        header: the header of all files, which is printed before these records; None: it is none, or not the first.
    """

    items: Sequence[bytes] = ()
    records: Sequence[bytes] = ()
    header: bytes | None = None

    def __len__(self) -> int:
        return len(self.items)

    def chosen(self, marks: Sequence[bool]) -> Window:
        """Return a window of the marked records."""
        items = [*compress(self.items, marks)]
        return Window(items, items if self.records is self.items else [*compress(self.records, marks)])


@dataclass(frozen=True, slots=True)
class Form:
    """How records are read. It is said by the user, and never guessed.

    Attributes:
        kind: ``lines``, ``csv`` or ``jsonl``.
        field: the name of the field that has the item; None: lines, or ``column`` says it.
        column: the number of that column, from 1, in files of CSV without a header.
        delimiter: what stands between two columns: one character of ASCII.
        null: whether a line ends with a NUL, and all other bytes count.
        trim: whether white space of ASCII around an item does not count.
    """

    kind: Kind = "lines"
    field: str | None = None
    column: int | None = None
    delimiter: str = ","
    null: bool = False
    trim: bool = False

    @property
    def end(self) -> bytes:
        """The end of a line."""
        return b"\0" if self.null else b"\n"

    @property
    def noun(self) -> str:
        """The word for one record."""
        return "line" if self.kind == "lines" else "record"

    @property
    def of_field(self) -> str:
        """The text behind a number of records that says which field counts."""
        if self.kind == "lines":
            return ""
        return f", field {self.field}" if self.column is None else f", column {self.column}"

    def about(self) -> dict[str, Any]:
        """Return what the JSON of a summary has about the field."""
        if self.kind == "lines":
            return {}
        return {"field": self.field} if self.column is None else {"column": self.column}

    def records(self, bad: Callable[[str], None]) -> Records:
        """Return what reads the records of some files; ``bad`` is called with a message for each that is left out."""
        kinds: dict[Kind, Callable[[Form, Callable[[str], None]], Records]]
        kinds = {"lines": _Lines, "csv": _Csv, "jsonl": _JsonLines}
        return kinds[self.kind](self, bad)

    def items(self, texts: list[bytes]) -> list[bytes]:
        """Return the items that the texts of fields stand for."""
        if self.trim:
            return [*map(_trimmed, texts)]
        if self.null or self.kind == "jsonl":  # their texts are exact
            return texts
        text = b"\n".join(texts)  # one search is faster than one a text
        return [*map(item_of, texts)] if b"\r" in text or codecs.BOM_UTF8 in text else texts


PLAIN = Form()


def item_of(line: bytes) -> bytes:
    """Return the item of a line, which is its own item: also of a line with two ends or two byte order marks."""
    return _without(_MARKS, line.rstrip(b"\r"))


def _trimmed(text: bytes) -> bytes:
    """Return the item of a text without white space around it, which is its own item."""
    return _without(_SPACE_AND_MARKS, text.strip())


def _without(beginning: re.Pattern[bytes], text: bytes) -> bytes:
    found = beginning.match(text)
    return text[found.end() :] if found else text


class Records(ABC):
    """Reads the records of the files of one command, one file after the other.

    Attributes:
        has_head: whether what the first record of the files says is known, as it must be to go on in the midst of one.
    """

    has_head = True

    def __init__(self, form: Form, bad: Callable[[str], None]) -> None:
        self._form, self._bad, self._name = form, bad, ""

    def begin(self, name: str, place: Place) -> None:  # noqa: ARG002 - of lines any one is a beginning
        """Begin a file, or go on in it; ``name`` is for messages."""
        self._name = name

    @abstractmethod
    def window(self, piece: Piece) -> tuple[Window, Place]:
        """Return the records that end in a piece, and the place after them.

        Raises:
            OSError: this file cannot be read; the text says why.
        """

    def end(self) -> None:  # noqa: B027 - a line is whole
        """Report the record that the end of the file cuts short, if there is one."""


class _Lines(Records):
    """Each line is an item, and printed as such."""

    def window(self, piece: Piece) -> tuple[Window, Place]:
        lines = piece.lines
        if piece.too_long:
            self._bad(f"{self._name}: line {piece.begin.lines + 1} is {_too_long()}")
            lines = lines[1:]
        items = self._form.items(lines)
        return Window(items, items), piece.end


class _JsonLines(Records):
    """Each line is a JSON object, one field of which is the item; a blank line is none."""

    def __init__(self, form: Form, bad: Callable[[str], None]) -> None:
        super().__init__(form, bad)
        # Numbers do not count, so they may be of any length: ``int`` refuses long ones.
        self._decode = json.JSONDecoder(parse_int=float).raw_decode

    def window(self, piece: Piece) -> tuple[Window, Place]:
        texts, records = [], []
        for number, line in enumerate(_unmarked(piece.lines), piece.begin.lines + 1):
            if number == piece.begin.lines + 1 and piece.too_long:
                self._bad(f"{self._name}: line {number} is {_too_long()}")
                continue
            written = line.strip(WHITE)
            if not written:
                continue
            try:
                texts.append(self._text(written))
                records.append(line)
            except (ValueError, RecursionError) as error:
                self._bad(f"{self._name}: line {number} is left out: {_why_no_json(error)}")
        return Window(self._form.items(texts), records), piece.end

    def _text(self, written: bytes) -> bytes:
        """Return the field's text; raise ValueError if there is none."""
        text = written.decode("utf-8", "surrogatepass")
        record, end = self._decode(text)
        if end < len(text):
            raise _NoText(f"something stands behind its JSON, at character {end + 1}")
        if not isinstance(record, dict):
            raise _NoText("it is no JSON object")
        found = record.get(self._form.field, self)
        if not isinstance(found, str):
            raise _NoText(
                f"it has no field {self._form.field}" if found is self else f"{self._form.field} is no string"
            )
        return found.encode("utf-8", "surrogatepass")


class _NoText(ValueError):
    """A JSON value in which the field has no text."""


def _why_no_json(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} of it is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error.msg}, at character {error.pos + 1}"
    return str(error)


@dataclass(slots=True)
class _Open:
    """A record of CSV whose last quote is not closed yet.

    Attributes:
        lines: its lines up to now; once it is over the limit, ``QUOTE`` stands for them.
        begin: the place before it.
        size: the bytes of these lines.
        too_long: whether it is over the limit.
    """

    lines: list[bytes]
    begin: Place
    size: int = 0
    too_long: bool = False

    def add(self, lines: Sequence[bytes], *, too_long: bool) -> None:
        """Take more lines; ``too_long``: the first one is over the limit."""
        self.lines += lines
        self.too_long |= too_long
        self.size += sum(map(len, lines)) + len(lines)
        if self.size > RECORD_LIMIT:
            self.lines, self.size, self.too_long = [QUOTE], 2, True


@dataclass(slots=True)
class _Record:
    """A record of CSV among some lines.

    Attributes:
        start: the number of the lines before it.
        stop: the number of the lines up to its end.
        row: its fields; empty for a blank line.
        why: why it cannot be read; empty: it can.
    """

    start: int
    stop: int
    row: list[str] = field(default_factory=list)
    why: str = ""


class _Csv(Records):
    """Records of CSV, one column of which has the items. The first record of each file says its columns.

    The module ``csv`` says where a record ends, as it says what its fields are. Bytes are read as characters of Latin-1
    there, each byte as one, so that an item has the bytes of the file.
    """

    def __init__(self, form: Form, bad: Callable[[str], None]) -> None:
        super().__init__(form, bad)
        csv.field_size_limit(2**31 - 1)  # of the process; it is 128 KiB otherwise, and ``RECORD_LIMIT`` counts
        self.has_head = False
        self._columns: list[str] | int = 0  #: the names of the columns, or without a header their number
        self._width = self._index = 0
        self._headers = 0  #: that were taken, of all files
        self._at_head = True
        self._open: _Open | None = None
        self._last = Place()

    def begin(self, name: str, place: Place) -> None:
        self._name, self._open, self._last, self._at_head = name, None, place, not place.offset
        if place.offset and not self.has_head:
            raise OSError(errno.EILSEQ, "its columns cannot be read any more")

    def window(self, piece: Piece) -> tuple[Window, Place]:
        self._last = piece.end
        if self._open is not None and not _closes(piece.lines):
            self._open.add(piece.lines, too_long=piece.too_long)
            return Window(), self._open.begin
        is_whole = not (piece.too_long or self._at_head or (self._open and self._open.too_long))
        return (self._quickly(piece) if is_whole else None) or self._slowly(piece)

    def _quickly(self, piece: Piece) -> tuple[Window, Place] | None:
        """Do as ``window`` if all records are good; None: some may be bad, or have a byte order mark."""
        opened = self._open or _Open([], piece.begin)
        lines = [*opened.lines, *piece.lines]
        text = b"\n".join([*lines, b""])
        if len(text) > RECORD_LIMIT or codecs.BOM_UTF8 in text:
            return None
        rows, stops, ended = [], [0], False

        def at_end() -> Iterator[str]:
            nonlocal ended
            ended = True
            yield from ()

        source = chain(io.StringIO(text.decode("latin-1"), newline="\n"), at_end())  # no \r ends a line
        reader = csv.reader(source, delimiter=self._form.delimiter, strict=True)
        try:
            for row in reader:
                rows.append(row)
                stops.append(reader.line_num)
        except csv.Error:
            if not ended:  # else it is within quotes
                return None
        if {*map(len, rows)} - {self._width}:
            return None
        records = lines
        if len(rows) < len(lines):
            records = [b"\n".join(lines[start:stop]) for start, stop in pairwise(stops)]
        place = self._hold(opened, piece, lines[stops[-1] :], stops[-1] - len(opened.lines))
        return Window(self._items(rows), records), place

    def _slowly(self, piece: Piece) -> tuple[Window, Place]:
        """Do as ``window``, record by record."""
        opened = self._open or _Open([], piece.begin)
        lines, ahead = [*opened.lines, *piece.lines], len(opened.lines)
        too_long = [*[0] * opened.too_long, *[ahead] * piece.too_long]
        rows, records, header, done = [], [], None, 0
        for found in self._each(lines):
            done = found.stop
            first = piece.begin.lines + found.start - ahead if found.start else opened.begin.lines
            numbers = first + 1, piece.begin.lines + found.stop - ahead
            raw = b"\n".join(lines[found.start : found.stop])
            if len(raw) > RECORD_LIMIT or any(found.start <= each < found.stop for each in too_long):
                self._left_out(numbers, _too_long())
            elif found.why:
                self._left_out(numbers, f"left out: {found.why}")
            elif not found.row:  # a blank line
                continue
            elif self._at_head and self._take_head(found.row):
                header = raw if self._headers == 1 else None
            elif len(found.row) != self._width:
                self._left_out(numbers, f"left out: it has {_columns(len(found.row))}, and not {self._width}")
            else:
                rows.append(found.row)
                records += _unmarked([raw])
        return Window(self._items(rows), records, header), self._hold(opened, piece, lines[done:], done - ahead)

    def _hold(self, opened: _Open, piece: Piece, rest: list[bytes], done: int) -> Place:
        """Hold the lines in which no record ends, and return the place before them.

        ``done`` is the number of the other lines of the piece; if it is negative, the record of ``opened`` goes on.
        """
        self._open, place = None, piece.end
        if rest:
            size = sum(map(len, rest)) + len(rest)
            if done > 0:
                place = Place(place.file, place.offset - size, place.lines - len(rest))
            else:
                place = opened.begin if done < 0 else piece.begin
            self._open = _Open([], place, too_long=opened.too_long and done < 0)
            self._open.add(rest, too_long=piece.too_long and done <= 0)
        return place

    def _each(self, lines: list[bytes]) -> Iterator[_Record]:
        """Yield the records that end in some lines."""
        fresh, ended = True, False
        marked = codecs.BOM_UTF8 in b"\n".join(lines)

        def texts() -> Iterator[str]:
            nonlocal fresh, ended
            for line in lines:
                text = _unmarked([line])[0] if marked and fresh else line
                fresh = False
                yield text.decode("latin-1") + "\n"
            ended = True

        reader = csv.reader(texts(), delimiter=self._form.delimiter, strict=True)
        start = 0
        while start < len(lines):
            fresh = True
            try:
                row, why = next(reader), ""
            except csv.Error as error:
                if ended:  # within quotes
                    return
                row, why = [], f"it is no CSV: {error}"
                if "new-line" in why:
                    why = "a carriage return stands within a field that has no quotes"
            yield _Record(start, reader.line_num, row, why)
            start = reader.line_num

    def _take_head(self, row: list[str]) -> bool:
        """Take the first record of a file; return whether it is a header.

        Raises:
            OSError: it has not the field, or other columns than the first file.
        """
        form = self._form
        texts = form.items([each.encode("latin-1") for each in row])
        names = [each.decode(errors="surrogateescape") for each in texts]
        columns = names if form.column is None else len(row)
        if form.column is None and form.field not in names:
            more = ", …" if len(names) > NAMED else ""
            shown = ", ".join(each if each.isprintable() else ascii(each) for each in names[:NAMED])
            raise OSError(errno.EILSEQ, f"its header has no field {form.field}: {shown}{more}")
        if form.column is not None and form.column > len(row):
            raise OSError(errno.EILSEQ, f"there is no column {form.column}: its first record has {_columns(len(row))}")
        if self.has_head and columns != self._columns:
            raise OSError(errno.EILSEQ, "its columns are not those of the first file: read it by a command of its own")
        self.has_head, self._at_head, self._columns, self._width = True, False, columns, len(row)
        if form.column is not None:
            self._index = form.column - 1
            return False
        self._index = len(names) - 1 - names[::-1].index(str(form.field))  # of equal names the last counts, as in JSON
        self._headers += 1
        return True

    def _items(self, rows: list[list[str]]) -> list[bytes]:
        index = self._index
        return self._form.items([row[index].encode("latin-1") for row in rows])

    def _left_out(self, numbers: tuple[int, int], why: str) -> None:
        """Report a record.

        Raises:
            OSError: it is the first one of its file, and so nothing says what the columns are.
        """
        first, last = numbers
        where = f"line {first} is" if first == last else f"the record of lines {first} to {last} is"
        if self._at_head:
            raise OSError(errno.EILSEQ, f"its columns cannot be read: {where} {why}")
        self._bad(f"{self._name}: {where} {why}")

    def end(self) -> None:
        if self._open is not None:
            numbers = self._open.begin.lines + 1, self._last.lines
            self._open = None
            self._left_out(numbers, "left out: its quote is never closed")


def _unmarked(lines: list[bytes]) -> list[bytes]:
    """Return lines without byte order marks at their beginnings: ``cat`` puts such a one into the middle of a file."""
    if codecs.BOM_UTF8 not in b"\n".join(lines):
        return lines
    return [_without(_MARKS, line) for line in lines]


def _closes(lines: list[bytes]) -> bool:
    """Whether a quote in some lines ends what is quoted before them: two together stand for one that is quoted."""
    text = b"\n".join(lines)
    return QUOTE in text and QUOTE in text.replace(QUOTE * 2, b"")


def _too_long() -> str:
    return f"longer than {RECORD_LIMIT >> 20} MiB and left out"


def _columns(number: int) -> str:
    return f"{number} column{'' if number == 1 else 's'}"
