"""A filter's configuration: decided once at creation, kept in ``meta``, the same in every shard."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, fields
from typing import Any

from urifilter_redis.digest import HASHES, new_seed
from urifilter_redis.errors import ConfigMismatch, SliceLost, UriFilterError
from urifilter_redis.normalize import NORMALIZATIONS
from urifilter_redis.sizing import size

__all__ = ["FORMAT", "RETENTIONS", "Config", "Settings", "Slice", "View"]

#: The version of ``meta`` and of the layouts; what is newer is refused.
FORMAT = 1

RETENTIONS = ("forever",)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the creator of a filter asks for.

    Attributes:
        capacity: items over the whole filter.
        error_rate: the probability that an item not seen is taken for seen, at capacity.
        layout: ``blocked`` or ``classic``.
        retention: ``forever``.
        shards: how many, or None for the fewest that keep slices within their limit.
        normalize: ``none``, ``whatwg`` or ``sorted``.
        hash: ``mmh3``, ``md5`` or ``blake2b``.
        seed: of the hash, or None for a random one.

    Raises:
        ValueError: a setting is not possible; the message says what is.
    """

    capacity: int
    error_rate: float = 1e-4
    layout: str = "blocked"
    retention: str = "forever"
    shards: int | None = None
    normalize: str = "none"
    hash: str = "mmh3"
    seed: int | str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("retention", RETENTIONS), ("normalize", NORMALIZATIONS), ("hash", HASHES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is one of {', '.join(allowed)} and not {getattr(self, name)!r}")
        size(self.capacity, self.error_rate, self.layout, self.shards)
        new_seed(self.hash, self.seed)


@dataclass(frozen=True, slots=True)
class Slice:
    """One live slice of a shard, as ``meta`` lists it.

    Attributes:
        name: ``today`` …, the end of its key.
        units: blocks (blocked) or bits (classic).
        size: bytes.
    """

    name: str
    units: int
    size: int

    def __str__(self) -> str:
        return f"{self.name}:{self.units}:{self.size}"


@dataclass(frozen=True, slots=True)
class View:
    """What a client knows of a shard that changes: the live slices, from oldest to newest."""

    slices: tuple[Slice, ...]

    @classmethod
    def from_meta(cls, meta: dict[str, str], name: str) -> View:
        """Read the live slices from a shard's ``meta``; ``name`` is for errors.

        Raises:
            SliceLost: they are missing or unreadable.
        """
        try:
            entries = [entry.split(":") for entry in meta["slices"].split()]
            return cls(tuple(Slice(slice_, int(units), int(size)) for slice_, units, size in entries))
        except (KeyError, ValueError) as error:
            raise SliceLost(f"{name}: meta is damaged: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Config:
    """A filter's settings and geometry as they stand in ``meta``; the attributes are the fields' names.

    ``k``, ``units`` and ``bytes`` are the offsets an item, and the blocks or bits and the bytes of a shard's first
    slice. ``seed`` is text: decimal for mmh3, empty for md5, 32 hex digits for blake2b.
    """

    uid: str
    layout: str
    retention: str
    capacity: int
    error_rate: float
    shards: int
    k: int
    units: int
    bytes: int
    normalize: str
    hash: str
    seed: str

    @classmethod
    def new(cls, settings: Settings) -> Config:
        """Decide what ``settings`` leave open: geometry, seed and uid."""
        sizing = size(settings.capacity, settings.error_rate, settings.layout, settings.shards)
        return cls(
            uid=secrets.token_hex(8),
            layout=settings.layout,
            retention=settings.retention,
            capacity=settings.capacity,
            error_rate=settings.error_rate,
            shards=sizing.shards,
            k=sizing.k,
            units=sizing.units,
            bytes=sizing.slice_bytes,
            normalize=settings.normalize,
            hash=settings.hash,
            seed=new_seed(settings.hash, settings.seed),
        )

    @classmethod
    def from_meta(cls, meta: dict[str, str], name: str) -> Config:
        """Read ``meta``.

        Raises:
            SliceLost: fields are missing or unreadable.
            UriFilterError: it was written by a newer version.
        """
        try:
            if int(meta["format"]) > FORMAT:
                raise UriFilterError(f"{name}: made by a newer version of urifilter-redis: upgrade this one")
            values = {f.name: _READ[str(f.type)](meta[f.name]) for f in fields(cls)}
        except (KeyError, ValueError) as error:
            raise SliceLost(f"{name}: meta is damaged: {error!r}") from error
        return cls(**values)

    def to_meta(self, shard: int, phase: str) -> list[str]:
        """Return field and value in turn, for the script ``create``."""
        today = Slice("today", self.units, self.bytes)
        values: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        del values["uid"]
        values |= {"shard": shard, "phase": phase, "epoch": 0, "slices": today, "inserted": 0}
        return [text for name, value in values.items() for text in (name, _write(value))]

    def check(self, settings: Settings, name: str) -> None:
        """Check that this is what ``settings`` ask for.

        Raises:
            ConfigMismatch: with each setting that differs.
        """
        asked = asdict(settings)
        if settings.shards is None:
            del asked["shards"]
        if settings.seed is None:
            del asked["seed"]
        else:
            asked["seed"] = new_seed(settings.hash, settings.seed)
        differences = {s: (v, getattr(self, s)) for s, v in asked.items() if getattr(self, s) != v}
        if differences:
            each = ", ".join(f"{s} is {has!r} and not {want!r}" for s, (want, has) in differences.items())
            raise ConfigMismatch(f"{name}: the filter exists with other settings: {each}", differences)


_READ = {"str": str, "int": int, "float": float}


def _write(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
