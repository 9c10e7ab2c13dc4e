"""Read the lines of files in windows of some thousand.

The item of a line is its bytes without the ``\\n`` or ``\\r\\n`` at its end, and without a byte order mark at its
beginning, which stands within a stream where ``cat`` has joined two files. The item is what a command prints, so that
the next command knows the printed line. ``records`` reads lines as CSV and JSON, too. The first bytes of a compressed
file (gzip, bzip2, xz, Zstandard) and of UTF-16 show what it is, and its lines are read; those of a file that has no
lines as bytes do so, too, and it is refused.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import select
import stat
import zlib
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from urifilter_redis.flows.items import WINDOW

from . import records
from .records import PLAIN, QUOTE, Form, Piece, Place, Records, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Bytes read at once. A pipe returns fewer at once, so that lines are handled as they come.
CHUNK = 1 << 20

#: Compressed bytes that are unpacked at once: few, because a small piece may hold very many equal lines.
PIECE = 4096

#: The most bytes back to which a Zstandard file may refer, and so of memory for it: what ``zstd --long=31`` makes.
LARGEST_WINDOW = 1 << 31

#: The most first bytes that show what a file is.
HEAD = 10

#: The same, of what begins with the mark of UTF-16.
MARKED = 1 << 10

STDIN = "-"

_BEGIN = Place()


def total_size(files: Sequence[str]) -> int | None:
    """Return the size of all files in bytes; None if one is a pipe, or does not exist."""
    try:
        found = [os.fstat(0) if name == STDIN else os.stat(name) for name in files]  # noqa: PTH116 - no path for stdin
    except OSError:
        return None
    return sum(each.st_size for each in found) if all(each.st_size for each in found) else None


def why_unreadable(name: str, form: Form = PLAIN) -> str:
    """Return why a file cannot be read; empty: nothing is known against it. A named pipe is not opened."""
    if name == STDIN:
        return ""
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116 - a name may be bytes that are no path
    except OSError as error:
        return error.strerror or str(error)
    number = errno.EISDIR if stat.S_ISDIR(mode) else 0 if os.access(name, os.R_OK) else errno.EACCES
    if number or (why := _why_refused(_head_of(name), form)):
        return os.strerror(number) if number else why
    found = form.records(lambda _: None)
    try:
        if stat.S_ISREG(mode) and not found.has_head:
            _read_first(name, found)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def windows_of(
    files: Sequence[str],
    bad: Callable[[str], None],
    read: Callable[[int], None] = lambda _: None,
    wait: Callable[[int], None] = lambda _: None,
    *,
    form: Form = PLAIN,
    most: int | None = None,
    pauses: bool = False,
) -> Iterator[Window]:
    """Yield the records of files in windows, in memory that does not grow.

    Args:
        files: the paths; ``-`` is stdin.
        bad: called with a message for each file that cannot be read and each record that is left out.
        read: called with the number of bytes after each read.
        wait: called with the file's descriptor before each read.
        form: how the records are read.
        most: the most records of a window; None: ``WINDOW``.
        pauses: whether to yield an empty window where the next one may have to be waited for, so that the caller can
            finish its work with the others first.
    """
    for window, _ in placed_windows(files, bad, read, wait, form=form, most=most, pauses=pauses):
        yield window


def placed_windows(
    files: Sequence[str],
    bad: Callable[[str], None],
    read: Callable[[int], None] = lambda _: None,
    wait: Callable[[int], None] = lambda _: None,
    begin: Place = _BEGIN,
    *,
    form: Form = PLAIN,
    most: int | None = None,
    pauses: bool = False,
) -> Iterator[tuple[Window, Place]]:
    """Do as ``windows_of``, but begin at a place, and yield the place after each window, too."""
    found = form.records(bad)
    for name in files[: begin.file + (begin.offset > 0)]:
        if not found.has_head:
            with suppress(OSError):  # it was left out, and told, before the place was reached
                _read_first(name, found)
    for number, name in enumerate(files):
        if number < begin.file:
            continue
        shown = "stdin" if name == STDIN else name
        place = begin if number == begin.file else Place(number)
        # a named pipe is opened once it has a writer; Path.is_file raises for a name that is too long
        if pauses and name != STDIN and not os.path.isfile(name):  # noqa: PTH113
            yield Window(), place
        try:
            descriptor = 0 if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
            continue
        try:
            found.begin(shown, place)
            chunks = _chunks(descriptor, read, wait, pauses=pauses)
            if place.offset and not is_converted(name):
                os.lseek(descriptor, place.offset, os.SEEK_SET)
            else:
                chunks = _behind(place.offset, _unpacked(chunks, form))
            yield from _windows(_pieces(chunks, place, form, most or WINDOW), found)
        except OSError as error:
            bad(f"{shown}: {error.strerror}")
        finally:
            if descriptor:
                os.close(descriptor)


def _read_first(name: str, found: Records) -> None:
    """Read the first record of a file, without which the others cannot be read.

    Raises:
        OSError: it cannot be read.
    """
    with open(name, "rb", buffering=0) as file:  # noqa: PTH123 - as above
        found.begin(name, Place())
        chunks = _unpacked(_chunks(file.fileno(), lambda _: None, lambda _: None, pauses=False), PLAIN)
        for piece in _pieces(chunks, Place(), PLAIN, 1):
            if piece is not None:
                found.window(piece)
            if found.has_head:
                return


def _windows(pieces: Iterator[Piece | None], found: Records) -> Iterator[tuple[Window, Place]]:
    """Yield the records of pieces; a pause is passed on as an empty window."""
    place = Place()
    for piece in pieces:
        if piece is None:
            yield Window(), place
            continue
        window, place = found.window(piece)
        if window or window.header is not None:
            yield window, place
    found.end()


def _chunks(
    descriptor: int, read: Callable[[int], None], wait: Callable[[int], None], *, pauses: bool
) -> Iterator[bytes | None]:
    """Yield the bytes of a file; with ``pauses`` yield None where they have to be waited for."""
    while True:
        if pauses and not select.select([descriptor], [], [], 0)[0]:
            yield None
        wait(descriptor)
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            return
        read(len(chunk))
        yield chunk


def _bzip2() -> Any:
    import bz2  # noqa: PLC0415 - seldom needed, and not in every Python

    return bz2.BZ2Decompressor()


def _xz() -> Any:
    import lzma  # noqa: PLC0415 - likewise

    return lzma.LZMADecompressor()


def _zstandard() -> Any:
    import zstandard  # noqa: PLC0415 - seldom needed

    return zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).decompressobj()


#: The first bytes of a compressed file, and a function that makes its decompressor. Those of bzip2 have its level;
#: a frame that Zstandard skips, of one of 16 kinds, stands before each frame that pzstd makes.
_COMPRESSED: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b\x08": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\0": _xz,
    b"\x28\xb5\x2f\xfd": _zstandard,
    **{b"%c\x2a\x4d\x18" % kind: _zstandard for kind in range(0x50, 0x60)},
    **{b"BZh%d%s" % (level, block): _bzip2 for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90")},
}


_Gzip = type(zlib.decompressobj())

_READ = "the lines up to there were read"
_MOSTLY = f"{_READ}, but perhaps not those shortly before"

_UTF_16 = "UTF-16 without a byte order mark: convert it with iconv -f UTF-16LE -t UTF-8, or UTF-16BE"
_UTF_32 = "UTF-32, and its lines are no bytes: convert it with iconv -f UTF-32 -t UTF-8"
_PACKED = "{}: unpack it first, and name what it holds"
_SEEN = "a binary requests.seen of Scrapy: od -An -v -tx1 -w22 FILE | tr -d ' ' | cut -c5- prints its fingerprints"

#: The first bytes of UTF-16. Those of UTF-32 begin with the same, and are refused first.
_MARKS_OF_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

#: The first bytes of files that have no lines to read, and what such a file is.
_REFUSED = [
    (re.compile(first, re.DOTALL), text)
    for first, text in [
        (rb"\xff\xfe\0\0|\0\0\xfe\xff", _UTF_32),
        (rb"PK(\x03\x04|\x05\x06)", _PACKED.format("a zip archive")),
        (rb"7z\xbc\xaf\x27\x1c", _PACKED.format("a 7z archive")),
        (rb"Rar!\x1a\x07", _PACKED.format("a RAR archive")),
        (rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", _PACKED.format("compressed by lz4")),
        (rb"LZIP\x01", _PACKED.format("compressed by lzip")),
        (rb"\x5d\0\0", _PACKED.format("compressed by lzma")),
        (rb"\x1f\x9d", _PACKED.format("compressed by compress")),
    ]
]

#: The same, of files that NULs show where a NUL ends no line; the first that fits counts.
_REFUSED_FOR_NULS = [
    (re.compile(first, re.DOTALL), text)
    for first, text in [
        (rb"[\t -~]\0\0\0|\0\0\0[\t -~]", _UTF_32),
        (rb"([\t -~]\0){2}|(\0[\t -~]){2}", _UTF_16),
        (rb"\0\x14", _SEEN),  # the length of the first fingerprint, an SHA-1
    ]
]


def is_converted(name: str) -> bool:
    """Whether a file is compressed, or UTF-16; false for stdin and for what is no regular file."""
    head = _head_of(name)
    return _decompressor(head) is not None or _is_utf_16(head)


def _head_of(name: str) -> bytes:
    """Return the first bytes of a file; none of stdin and of what is no regular file."""
    if name == STDIN or not os.path.isfile(name):  # noqa: PTH113 - as above
        return b""
    with open(name, "rb") as file:  # noqa: PTH123 - likewise
        return file.read(MARKED)


def _decompressor(head: bytes) -> Callable[[], Any] | None:
    return next((make for magic, make in _COMPRESSED.items() if head.startswith(magic)), None)


def _is_utf_16(head: bytes) -> bool:
    """Whether a file is UTF-16, by its first bytes: a mark, and the NUL of a character of ASCII, as the end of a line.

    A mark alone may be the beginning of a stranger's link.
    """
    return head.startswith(_MARKS_OF_UTF_16) and b"\0" in head[:MARKED]


def _why_refused(head: bytes, form: Form) -> str:
    """Return what a file is that has no lines, by its first bytes; empty: its lines are read."""
    refused = _REFUSED if form.null else [*_REFUSED, *_REFUSED_FOR_NULS]
    return next((f"it is {text}" for first, text in refused if first.match(head)), "")


def _unpacked(chunks: Iterator[bytes | None], form: Form, *, within: bool = False) -> Iterator[bytes | None]:
    """Yield the chunks of a file, unpacked if it is compressed, and as UTF-8 if it is UTF-16.

    ``within``: they were unpacked already.

    Raises:
        OSError: the file has no lines, or is compressed twice, or its compressed data are damaged.
    """
    head = b""
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        head += chunk
        if head.startswith(_MARKS_OF_UTF_16):
            enough = len(head) >= MARKED or _is_utf_16(head)
        else:
            enough = len(head) >= HEAD or form.end in head  # a line is not kept waiting
        if enough:
            break
    make = _decompressor(head)
    why = _why_refused(head, form) or ("it is compressed twice: unpack it first" if make and within else "")
    if why:
        raise OSError(errno.EILSEQ, f"{why} (in what was unpacked)" if within else why)
    if head:
        chunks = chain([head], chunks)
    if make is not None:
        yield from _unpacked(_gathered(_decompressed(chunks, make)), form, within=True)
    else:
        yield from _as_utf_8(chunks) if _is_utf_16(head) and not form.null else chunks


def _as_utf_8(chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Convert chunks of UTF-16 with a byte order mark. Half a surrogate pair is a character, as everywhere."""
    decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass")
    for chunk in chunks:
        if chunk is None:
            yield None
        elif text := decoder.decode(chunk):
            yield text.encode("utf-8", "surrogatepass")
    if decoder.getstate()[0]:
        raise OSError(errno.EILSEQ, "it ends within a character of UTF-16: the lines up to there were read")


def _decompressed(chunks: Iterator[bytes | None], make: Callable[[], Any]) -> Iterator[bytes | None]:
    """Unpack chunks: one compressed part behind the other, as ``cat`` makes them, and zeros behind the last.

    Yield short parts of text, b"" behind those of a chunk, and None for None.
    """
    unpacker = make()
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        for start in range(0, len(chunk), PIECE):
            piece = chunk[start : start + PIECE]
            while piece := piece.lstrip(b"\0") if unpacker.eof else piece:
                unpacker = make() if unpacker.eof else unpacker
                yield from filter(None, _parts(unpacker, piece))
                piece = unpacker.unused_data if unpacker.eof else b""
        yield b""
    if not unpacker.eof:
        raise OSError(errno.EILSEQ, f"its compressed data end too early: {_READ}")


def _parts(unpacker: Any, piece: bytes) -> Iterator[bytes]:
    """Unpack a piece of one compressed part, and of its lines ``CHUNK`` bytes at a time, where its format lets stop."""
    try:
        if hasattr(unpacker, "needs_input"):  # bzip2, xz
            yield unpacker.decompress(piece, CHUNK)
            while not (unpacker.needs_input or unpacker.eof):
                yield unpacker.decompress(b"", CHUNK)
        elif isinstance(unpacker, _Gzip):
            while piece:
                yield unpacker.decompress(piece, CHUNK)
                piece = b"" if unpacker.eof else unpacker.unconsumed_tail  # which is kept at the end
        else:  # Zstandard: 4 bytes stand for 128 KiB at most
            yield unpacker.decompress(piece)
    except Exception as error:  # each format has its own
        raise OSError(errno.EILSEQ, f"its compressed data are damaged ({error}): {_MOSTLY}") from error


def _gathered(parts: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Join the parts of ``_decompressed`` to chunks of at most ``CHUNK`` bytes, also those before an error."""
    done: list[bytes] = []
    size = 0
    try:
        for part in parts:
            if part:
                done.append(part)
                size += len(part)
            if size >= CHUNK or not part:
                text = b"".join(done)
                yield from (text[at : at + CHUNK] for at in range(0, size, CHUNK))
                done, size = [], 0
            if part is None:
                yield None
    except OSError:
        if done:
            yield b"".join(done)
        raise


def _behind(count: int, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Leave out the first ``count`` bytes of chunks."""
    for chunk in chunks:
        if count and chunk is not None:
            count, chunk = max(0, count - len(chunk)), chunk[count:]  # noqa: PLW2901
        if chunk is None or chunk:
            yield chunk


def _pieces(chunks: Iterator[bytes | None], begin: Place, form: Form, most: int) -> Iterator[Piece | None]:
    """Yield the lines of a file in pieces of at most so many; None where they have to be waited for."""
    for piece in _lines(chunks, begin, form.end):
        if piece is None or len(piece.lines) <= most:
            yield piece
            continue
        lines, place = piece.lines, piece.begin
        left = sum(map(len, lines)) + len(lines)  # each line has its end: one that has none is a piece of its own
        for start in range(0, len(lines), most):
            some = lines[start : start + most]
            left -= sum(map(len, some)) + len(some)
            end = Place(begin.file, piece.end.offset - left, place.lines + len(some))
            yield Piece(some, place, end, piece.too_long and not start)
            place = end


def _lines(chunks: Iterator[bytes | None], begin: Place, separator: bytes) -> Iterator[Piece | None]:
    """Yield the whole lines of each chunk, and what remains at the end of the file; None as ``_pieces``."""
    place, offset, rest, quotes = begin, begin.offset, bytearray(), -1  # quotes: of a line over the limit, else -1

    def line() -> bytes:
        return bytes(rest) if quotes < 0 else QUOTE * ((quotes + rest.count(QUOTE)) % 2)

    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        offset += len(chunk)
        lines = chunk.split(separator)
        rest += lines[0]
        if len(rest) > records.RECORD_LIMIT:
            quotes, rest = max(0, quotes) + rest.count(QUOTE), bytearray()
        if len(lines) == 1:
            continue
        lines[0], last = line(), lines.pop()
        end = Place(begin.file, offset - len(last), place.lines + len(lines))
        yield Piece(lines, place, end, quotes >= 0)
        place, rest, quotes = end, bytearray(last), -1
    if rest or quotes >= 0:
        yield Piece([line()], place, Place(begin.file, offset, place.lines + 1), quotes >= 0)
