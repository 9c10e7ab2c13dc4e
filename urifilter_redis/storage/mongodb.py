"""MongoDB as the backend of an archive: blobs in the GridFS bucket ``urifilter``, documents in ``urifilter.pointers``.

The methods serve both clients: with asyncio, pymongo's calls return awaitables, which the driver awaits.
"""

from __future__ import annotations

import datetime as dt
import inspect
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import gridfs
import pymongo
from bson.errors import BSONError
from gridfs.asynchronous import AsyncGridFSBucket
from pymongo import ReadPreference
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI, PyMongoError
from pymongo.uri_parser import parse_uri

from urifilter_redis.engine.backend import UNREADABLE, Blob, Key
from urifilter_redis.engine.steps import Flow, Work
from urifilter_redis.errors import ArchiveCorrupt, ArchiveError, ArchiveMissing
from urifilter_redis.protocol.keys import check_name, is_name
from urifilter_redis.transport.loops import PerLoop

#: The name of the bucket, and the first part of the collections' names.
BUCKET = "urifilter"

#: Timeouts in ms, unless the URL sets them. pymongo's defaults (30 s, and none for sockets) are long for a crawler.
WAITS = {"serverSelectionTimeoutMS": 5_000, "connectTimeoutMS": 5_000, "socketTimeoutMS": 30_000}

#: Bytes of a GridFS chunk: pymongo's default.
CHUNK = 255 << 10

#: FerretDB 1 finds a document, and then writes it by its _id whatever it has become.
_NOT_ATOMIC = (
    "FerretDB 1 has no atomic updates: of two processes that replace a document, one may lose what it wrote; "
    "let only one worker write there"
)

_FIELDS = ("filter", "kind", "uid", "shard", "epoch")


class MongoBackend:
    """An archive in a MongoDB database; see ``Backend`` for the methods.

    Args:
        url: ``mongodb://…/database`` or ``mongodb+srv://…/database``.
        asynchronous: whether the asyncio driver runs the flows.

    Raises:
        ValueError: the URL names no database, cannot be parsed, or has impossible options.
    """

    def __init__(self, url: str, *, asynchronous: bool = False) -> None:
        self.url, self._asynchronous = url, asynchronous
        database = _database_of(url)
        _check_options(url)
        parts = urlsplit(url)
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/{database}"
        self._name = database
        self._waits: Any = {
            name: value for name, value in WAITS.items() if f"{name.lower()}=" not in parts.query.lower()
        }
        self._clients = PerLoop(lambda: pymongo.AsyncMongoClient(url, **self._waits), lambda client: client.close())
        self._client: Any = None
        self._owner = 0
        self._indexed = False

    @property
    def _database(self) -> Any:
        if self._asynchronous:
            return self._of(self._clients.get())
        if self._client is None or self._owner != os.getpid():  # a pymongo client cannot be used after a fork
            self._client, self._owner = pymongo.MongoClient(self.url, **self._waits), os.getpid()
        return self._of(self._client)

    def _of(self, client: Any) -> Any:
        # Whatever the address says: what another node has may be older than what is to be replaced or removed.
        return client.get_database(self._name, read_preference=ReadPreference.PRIMARY)

    @property
    def _pointers(self) -> Any:
        return self._database[f"{BUCKET}.pointers"]

    @property
    def _files(self) -> Any:
        return self._database[f"{BUCKET}.files"]

    @property
    def _chunks(self) -> Any:
        return self._database[f"{BUCKET}.chunks"]

    @property
    def _bucket(self) -> Any:
        kind = AsyncGridFSBucket if self._asynchronous else gridfs.GridFSBucket
        return kind(self._database, BUCKET, CHUNK)

    def read(self, key: Key) -> Flow[bytes | None]:
        """Find the pointer of the document."""
        found = yield from self._work("read", lambda: self._pointers.find_one(_fields(key)))
        if found is not None and not isinstance(found.get("text"), bytes):
            raise ArchiveCorrupt(f"archive {self.shown}: the document {key} has no text")
        return None if found is None else _bytes(found["text"])

    def filters(self) -> Flow[list[str]]:
        """Find the filters' names in the pointers."""
        found = yield from self._work("filters", lambda: self._pointers.find({}, {"filter": 1}).to_list())
        names = {each["filter"] for each in found if isinstance(each.get("filter"), str)}
        return sorted(filter(is_name, names))  # other pointers do not belong to the archive

    def has_place(self, name: str) -> Flow[bool]:
        """Return True: a database that is away fails, and does not look empty."""
        check_name(name)
        yield from ()
        return True

    def keys(self, name: str | None = None) -> Flow[list[Key]]:
        """Find the keys in the pointers."""
        only = {} if name is None else {"filter": check_name(name)}
        wanted = dict.fromkeys(_FIELDS, 1)
        found = yield from self._work("keys", lambda: self._pointers.find(only, wanted).to_list())
        kinds = (str, str, str, int, int)
        fields = (tuple(each.get(field) for field in _FIELDS) for each in found)
        # pointers with other types or names do not belong to the archive
        return sorted(Key(*each) for each in fields if all(map(isinstance, each, kinds)) and is_name(each[0]))

    def swap(self, key: Key, old: bytes | None, new: bytes | None) -> Flow[bool]:
        """Insert, update or delete the pointer. The unique index, or the old text in the query, lets one caller win."""
        if not self._indexed and new is not None:
            index = [(field, 1) for field in _FIELDS]
            yield from self._work("index", lambda: self._pointers.create_index(index, unique=True))
            self._indexed = True
        if old is None:
            if new is None:
                return (yield from self.read(key)) is None
            try:
                yield from self._work("swap", lambda: self._pointers.insert_one(_fields(key) | {"text": new}))
            except ArchiveError as error:
                if isinstance(error.__cause__, DuplicateKeyError):
                    return False
                raise
            return True
        unreadable = {"$or": [{"text": b""}, {"text": {"$not": {"$type": "binData"}}}]}
        same = _fields(key) | (unreadable if old == UNREADABLE else {"text": old})
        if new is None:
            done = yield from self._work("swap", lambda: self._pointers.delete_one(same))
            return bool(done.deleted_count)
        done = yield from self._work("swap", lambda: self._pointers.update_one(same, {"$set": {"text": new}}))
        return bool(done.matched_count)

    def upload(self, name: str, blob: str) -> _Upload:
        """Begin to write a file of the bucket."""
        return _Upload(self, name, blob)

    def download(self, name: str, blob: str, offset: int, length: int) -> Flow[bytes]:
        """Read a part of a file: only its chunks. GridFS's own reader would ask for all later chunks, too."""
        first, last = offset // CHUNK, (offset + length - 1) // CHUNK
        wanted = {"files_id": _id(name, blob), "n": {"$gte": first, "$lte": last}}
        chunks = yield from self._work("download", lambda: self._chunks.find(wanted).sort("n", 1).to_list())
        if not chunks and length:
            raise ArchiveMissing(f"archive {self.shown}: blob {blob} of filter {name!r} is missing")
        data = b"".join(_bytes(each.get("data")) for each in chunks)
        return data[offset - first * CHUNK :][:length]

    def delete(self, name: str, blobs: Sequence[str]) -> Flow[None]:
        """Delete files of the bucket with their chunks, finished or not."""
        if blobs:
            among = {"$in": [_id(name, blob) for blob in blobs]}
            yield from self._work("delete", lambda: self._files.delete_many({"_id": among}))
            yield from self._work("delete", lambda: self._chunks.delete_many({"files_id": among}))

    def blobs(self, name: str | None = None) -> Flow[list[Blob]]:
        """Find the files of the bucket, and the chunks of unfinished files."""
        mine = {"$regex": "^[^/]+/" if name is None else f"^{re.escape(check_name(name))}/"}
        among, fields = {"files_id": mine}, {"files_id": 1}
        chunks = yield from self._work("blobs", lambda: self._chunks.find(among, fields).to_list())
        files = yield from self._work("blobs", lambda: self._files.find({"_id": mine}).to_list())
        whole = {each["_id"]: each for each in files}
        last = {each["_id"]: _time(each.get("uploadDate")) for each in files}
        for chunk in chunks:
            written = _time(getattr(chunk["_id"], "generation_time", None))
            last[chunk["files_id"]] = max(written, last.get(chunk["files_id"], written))
        now = dt.datetime.now(dt.UTC)
        found = [_blob(each, whole.get(each), (now - time).total_seconds()) for each, time in last.items()]
        return [each for each in found if is_name(each.filter)]

    def obstacles(self, needed: int) -> Flow[list[tuple[str, str]]]:  # noqa: ARG002 - as ``Backend`` has it
        """Tell of a database that cannot replace documents safely; what a database refuses, it says itself."""
        server = yield from self._work("obstacles", lambda: self._database.command("buildInfo"))
        return [("note", _NOT_ATOMIC)] if "ferretdbVersion" in server else []  # version 2 has no such field

    def close(self) -> Flow[None]:
        """Close the client; with asyncio, the client of the running loop."""
        if self._asynchronous:
            yield Work("archive close", self._clients.close, awaited=True)
        elif self._client is not None and self._owner == os.getpid():
            yield from self._work("close", self._client.close)

    def _kept(self, do: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a call, so that with asyncio its client is closed when the loop ends."""

        async def kept() -> Any:
            await self._clients.kept()
            found = do()
            return await found if inspect.isawaitable(found) else found

        return kept if self._asynchronous else do

    def _work(self, name: str, do: Callable[[], Any]) -> Flow[Any]:
        try:
            return (yield Work(f"archive {name}", self._kept(do), awaited=self._asynchronous))
        except (PyMongoError, OSError) as error:  # OSError: a file of TLS that was there at the start
            raise ArchiveError(f"archive {self.shown}: {_text(error)}") from error
        except BSONError as error:
            raise ArchiveCorrupt(f"archive {self.shown}: a document cannot be decoded: {error}") from error


class _Upload:
    """Writes a file of the bucket; ``finish`` makes it visible to others."""

    def __init__(self, backend: MongoBackend, name: str, blob: str) -> None:
        self._backend, self._name, self._blob = backend, check_name(name), blob
        self._file: Any = None

    def write(self, data: bytes) -> Flow[None]:
        yield from self._backend._work("write", lambda: self._open().write(data))  # noqa: SLF001 - its own backend

    def finish(self) -> Flow[None]:
        yield from self._backend._work("finish", lambda: self._open().close())  # noqa: SLF001 - likewise

    def abandon(self) -> Flow[None]:
        yield from self._backend.delete(self._name, [self._blob])

    def _open(self) -> Any:
        if self._file is None:
            name = _id(self._name, self._blob)
            self._file = self._backend._bucket.open_upload_stream_with_id(name, name)  # noqa: SLF001 - likewise
        return self._file


def _database_of(url: str) -> str:
    """Return the database that an address names.

    Raises:
        ValueError: it names none, or is no address; the text has no part of it, for that may be one of a password.
    """
    address, _, query = url.partition("?")
    of_service = address.startswith("mongodb+srv://")
    try:
        parsed = parse_uri(address.replace("mongodb+srv://", "mongodb://", 1))
    except (InvalidURI, ConfigurationError, ValueError):
        parsed = {"database": None}
    if not parsed["database"] or "@" in query:
        text = "in a user name or password / : @ and % are written %2F %3A %40 %25"
        raise ValueError(f"an archive in MongoDB is mongodb://host/database; {text}")
    if of_service and (len(parsed["nodelist"]) > 1 or re.search(r":\d+$", urlsplit(address).netloc)):
        raise ValueError("mongodb+srv:// has one host, without a port: the DNS names the servers and their ports")
    return str(parsed["database"])


def _check_options(url: str) -> None:
    """Check the options of an address, and the files that they name; nothing is connected.

    Raises:
        ValueError: pymongo does not know one, or cannot use it, or with it writes have no answers.
    """
    address, _, query = url.partition("?")
    more: dict[str, Any] = {}
    options = query.split("&")
    if address.startswith("mongodb+srv://"):
        more, address = {"tls": True}, address.replace("mongodb+srv://", "mongodb://", 1)
        options = [each for each in options if not each.lower().startswith("srv")]  # they are of such addresses alone
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of an unknown option pymongo only warns
            client = pymongo.MongoClient(f"{address}?{'&'.join(options)}", connect=False, **more)
        client.close()
    except Exception as error:  # noqa: BLE001 - of pymongo, of the operating system, or of either library for TLS
        text = _text(error)
        secret = urlsplit(url).password
        if secret and secret in text:
            text = type(error).__name__
        named = ", ".join(name for each in options if (name := each.partition("=")[0]).isalpha())
        raise ValueError(f"an option of the archive's address cannot be used ({named}): {text}") from None
    if not client.write_concern.acknowledged:
        raise ValueError("an archive's address cannot have w=0: nobody would learn whether something was written")


def _fields(key: Key) -> dict[str, Any]:
    check_name(key.filter)
    return {field: getattr(key, field) for field in _FIELDS}


def _id(name: str, blob: str) -> str:
    return f"{check_name(name)}/{blob}"


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray) else b""


def _time(value: Any) -> dt.datetime:
    """Return a time from MongoDB, with its zone; now if it is none, so that ``prune`` keeps the blob."""
    if not isinstance(value, dt.datetime):
        return dt.datetime.now(dt.UTC)
    return value if value.tzinfo else value.replace(tzinfo=dt.UTC)


def _blob(id_: Any, file: dict[str, Any] | None, age: float) -> Blob:
    name, _, blob = str(id_).rpartition("/")
    length = (file or {}).get("length", 0)
    return Blob(name, blob, length if isinstance(length, int) else 0, max(0.0, age), file is not None)


def _text(error: Exception) -> str:
    """Return the first line of pymongo's message; the other lines describe the topology."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].split(", Timeout:")[0]
