"""A filter's configuration: it is decided once at creation, kept in ``meta``, and the same in every shard."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from datetime import timedelta
from typing import Any, NamedTuple, Required, TypedDict, cast

from urifilter_redis.bloom.digest import HASHES, new_seed
from urifilter_redis.bloom.normalize import NORMALIZATIONS
from urifilter_redis.bloom.retention import (
    EXPIRE_AFTER,
    RETENTIONS,
    SLICES,
    TIMED,
    WRITES,
    Shape,
    check_growth,
    period_of,
    seconds_of,
    size_first,
)
from urifilter_redis.bloom.rules import RulesGiven, canonical_rules, sha256_of
from urifilter_redis.bloom.sizing import REDISBLOOM, Slice, most_grown
from urifilter_redis.bloom.url_parts import BY_PARTS, PARAMETER_LIST
from urifilter_redis.checks import check_among, check_least, is_whole
from urifilter_redis.errors import ConfigMismatch, UriFilterError
from urifilter_redis.protocol.meta import damaged

#: The format of what this release writes, in Redis and in archives. It refuses every other.
FORMAT = 1


#: Most slices of a ring of layout redisbloom.
MODULE_SLICES = 4


class Sorting(NamedTuple):
    """How the items of a list are sorted; equal ones keep their order.

    Attributes:
        ranges: the number of equal ranges of x, the bits that choose segments, by which they are sorted.
        beyond: the items of a shard are sorted if so many calls are too few for them; 0: always.
    """

    ranges: int
    beyond: int


class FilterSettings(TypedDict, total=False):
    """The settings of a filter as keyword arguments; ``UriFilter.create`` describes them.

    Example:
        >>> FilterSettings(capacity=1000, error_rate=1e-6)
        {'capacity': 1000, 'error_rate': 1e-06}
    """

    capacity: Required[int]
    error_rate: float
    layout: str
    retention: str
    slices: int | None
    period: str | int | timedelta | None
    write: str | None
    expire_after: str | None
    period_capacity: int | None
    shards: int | None
    normalize: str
    rules: RulesGiven | None
    hash: str
    seed: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Shape):
    """The settings that the creator of a filter asks for: its shape, and how items become digests.

    Attributes:
        normalize: the normalisation of items: ``none``, ``whatwg``, ``sorted`` or ``loose``.
        rules: what else tells no pages apart on some hosts: a list of rules, its JSON text, or the path of a TOML
            file; the attribute is the canonical text. None: none, or those of the filter that exists.
        hash: the hash of items: ``mmh3``, ``md5`` or ``blake2b``.
        seed: the seed of the hash; None: a random one.

    Raises:
        ValueError: a setting is not allowed; the message names the allowed values.

    Example:
        >>> Settings(capacity=1000, retention="ring", slices=30, period="24h").period
        '1d'
    """

    normalize: str = "none"
    rules: RulesGiven | None = None
    hash: str = "mmh3"
    seed: int | str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_among("retention", self.retention, RETENTIONS)
        check_among("normalize", self.normalize, NORMALIZATIONS)
        if self.rules is not None:
            self._fill("rules", canonical_rules(self.rules, self.normalize))
        check_among("hash", self.hash, HASHES)
        self._check_time()
        if self.layout == "counting" and self.retention != "forever":
            raise ValueError("layout counting is for retention forever only")
        if self.layout == REDISBLOOM and (what := _not_for_module(self)):
            raise ValueError(f"layout redisbloom is not for {what}: take layout blocked, or classic")
        check_growth(self, size_first(self))
        new_seed(self.hash, self.seed)

    def _check_time(self) -> None:
        """Check the settings that belong to a retention, and fill in their defaults."""
        timed, ring = self.retention in TIMED, self.retention == "ring"
        for name, taken in (("slices", timed), ("period", timed), ("expire_after", timed), ("write", ring)):
            if not taken and getattr(self, name) is not None:
                raise ValueError(f"{name} is not for retention {self.retention}")
        if timed:
            if self.slices is None or self.period is None:
                text = "needs slices (their number) and period (45s, 10m, 6h, 1d, 2w)"
                raise ValueError(f"retention {self.retention} {text}")
            least, most = SLICES[self.retention]
            if not is_whole(self.slices, least, most):
                raise ValueError(f"slices are {least} to {most} for {self.retention}, and not {self.slices!r}")
            self._fill("period", period_of(self.period))
            self._fill("expire_after", self.expire_after or "first-seen")
            check_among("expire_after", self.expire_after, EXPIRE_AFTER)
        if ring:
            self._fill("write", self.write or "newest")
            check_among("write", self.write, WRITES)
        if self.period_capacity is not None:
            if self.write != "newest":
                raise ValueError("period_capacity is for retention ring with write newest")
            check_least("period_capacity", self.period_capacity, 1)

    def _fill(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def allows_module(settings: Shape) -> bool:
    """Whether a filter of this shape may have layout redisbloom."""
    return not _not_for_module(settings)


def _not_for_module(settings: Shape) -> str:
    """Return the setting that layout redisbloom cannot have; "" if it can have all of them."""
    refused = {
        "retention rolling": settings.retention == "rolling",
        # each test of a slice is a call of the module
        f"more than {MODULE_SLICES} slices": settings.retention == "ring" and (settings.slices or 0) > MODULE_SLICES,
        "write all": settings.write == "all",
        "expire_after last-seen": settings.expire_after == "last-seen",
    }
    return next((what for what, asked in refused.items() if asked), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Shape):
    """A filter's settings and geometry, as ``meta`` has them.

    Each attribute has its field's name in ``meta``, but for ``slices``: that field is called ``window``, because the
    field ``slices`` lists the live slices. A setting that the retention does not have is None. The settings are
    described in ``Shape`` and ``Settings``.

    Attributes:
        uid: the filter's 16 hex digits.
        k: the number of offsets of an item.
        segments: the number of bitmaps of a slice, over all shards.
        units: the blocks (blocked), bits (classic) or counters (counting) of a bitmap of the first slice.
        bytes: its bytes.
        rules: the canonical text of its rules; None: it has none.
        parameter_list: the number of the built-in list of tracking parameters; None: its normalisation has none.
        seed: the seed as text: decimal for mmh3, empty for md5, 32 hex digits for blake2b.
        archive: where checkpoints and rolling's closed slices are: an address without user and password, or
            ``redis`` (closed slices only, beside the filter); None: there is none.
        items: what the items are, as the creator named it (``fingerprint``, ``url``); None: it is not known.

    Example:
        >>> news.config.k
        12
    """

    shards: int
    period: str | None = None
    uid: str
    segments: int
    k: int
    units: int
    bytes: int
    normalize: str
    rules: str | None = None
    parameter_list: int | None = None
    hash: str
    seed: str = field(repr=False)
    archive: str | None = None
    items: str | None = None

    @classmethod
    def new(cls, settings: Settings, archive: str | None = None, items: str | None = None) -> Config:
        """Make the configuration of a new filter: choose its geometry, seed and uid.

        Args:
            settings: the wanted settings.
            archive: the address of an archive outside Redis; None: there is none.
            items: what the items are; None: it is not known.
        """
        sizing = size_first(settings)
        asked = asdict(settings) | {"shards": sizing.shards, "seed": new_seed(settings.hash, settings.seed)}
        asked |= {"rules": _or_none(asked["rules"])}
        return cls(
            uid=secrets.token_hex(8),
            segments=sizing.segments,
            k=sizing.k,
            units=sizing.units,
            bytes=sizing.segment_bytes,
            archive=archive or ("redis" if settings.retention == "rolling" else None),
            items=items,
            parameter_list=PARAMETER_LIST if settings.normalize in BY_PARTS else None,
            **asked,
        )

    @classmethod
    def from_meta(cls, meta: dict[str, str], name: str) -> Config:
        """Read the configuration from a shard's ``meta``; ``name`` is the filter's, for errors.

        Raises:
            SliceLost: fields are missing or unreadable.
            UriFilterError: ``meta`` is of another format, or this release does not know the filter's normalisation or
                hash.
        """
        check_format(meta, name)
        try:
            config = cls(**{each.name: _read(each, meta) for each in fields(cls) if _has(meta, each)})
            fixed = config.fixed(int(meta["shard"]))
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(name, repr(error)) from error
        if meta.get("fixed", "").rstrip() != fixed:
            raise damaged(name, f"fixed is {meta.get('fixed')!r} and not {fixed!r}")
        for setting, known in (("normalize", NORMALIZATIONS), ("hash", HASHES)):
            if (value := getattr(config, setting)) not in known:
                text = f"{setting} is {value!r}, for which this urifilter-redis is too old: upgrade it"
                raise UriFilterError(f"{name}: {text}")
        config.check_known(meta, name)
        return config

    def check_known(self, meta: Mapping[str, str], name: str) -> None:
        """Check that this release knows all that decides what an item is; ``name`` is the filter's, for errors.

        Raises:
            UriFilterError: ``meta`` has a field, a list of parameters or a rule that this release does not know.
        """
        what = ""
        if unknown := meta.keys() - _KNOWN:
            what = f"it has the setting {min(unknown)}"
        elif self.parameter_list != (PARAMETER_LIST if self.normalize in BY_PARTS else None):
            what = f"parameter_list is {self.parameter_list!r}"
        elif self.rules is not None:
            try:
                canonical = canonical_rules(self.rules, self.normalize)
            except ValueError as error:
                what = f"its rules cannot be read ({error})"
            else:
                what = "" if canonical == self.rules else "its rules are written otherwise"
        if what:
            raise UriFilterError(f"{name}: {what}, for which this urifilter-redis is too old: upgrade it")

    @property
    def today(self) -> Slice:
        """A shard's first slice."""
        return Slice("today", self.units, self.bytes, self.segments // self.shards)

    @property
    def has_backend(self) -> bool:
        """Whether the archive is outside Redis: in a folder or MongoDB."""
        return self.archive not in {None, "redis"}

    @property
    def turned_by_inserts(self) -> bool:
        """Whether clients that insert rotate the filter: a ring, or rolling whose closed slices are in Redis."""
        return self.retention in TIMED and not self.has_backend

    @property
    def sorting(self) -> Sorting | None:
        """How the items of a list are sorted before they are cut into calls; None: they keep their order.

        Where a slice of a shard has several segments (of a growing filter it may get them), the items of a call are
        neighbours. The scripts of layout redisbloom ask the module segment by segment: so they want these in order.
        """
        grows = self.retention == "growing"
        if self.segments == self.shards and not grows:
            return None
        if self.layout == REDISBLOOM:
            return Sorting(most_grown(size_first(self)) if grows else self.segments, beyond=0)
        return Sorting(256, beyond=1)  # by the last byte of a digest: soonest, and near enough

    @property
    def settings(self) -> FilterSettings:
        """The keyword arguments with which ``create`` makes a filter of the same geometry, hash and seed."""
        names = {each.name for each in fields(Settings)}
        return cast("FilterSettings", {name: value for name, value in asdict(self).items() if name in names})

    def to_meta(self, shard: int, phase: str) -> list[str]:
        """Return the fields of a new shard's ``meta``, field and value in turn."""
        values: dict[str, Any] = {"phase": phase, "epoch": 0, "oldest": 0, "slices": self.today, "inserted": 0}
        values |= {_IN_META.get(name, name): value for name, value in asdict(self).items() if value is not None}
        if self.rules and shard:  # to compare; the rules themselves are in shard 0
            values["rules"] = sha256_of(self.rules)
        # A hash with a value of over 64 bytes is a hash table, and no list: scripts read its fields in half the time.
        values |= {"format": FORMAT, "shard": shard, "fixed": self.fixed(shard).ljust(65)}
        del values["uid"]
        if self.expire_after == "last-seen":
            values["new"] = 0
        if self.period:
            values["period_ms"] = 1000 * seconds_of(self.period)
        if self.retention == "growing":
            values["limit"] = size_first(self).shard_capacity
        if self.segments > self.shards:
            values["made"] = 1
        return [text for name, value in values.items() for text in (name, str(value))]

    def fixed(self, shard: int) -> str:
        """Return the field ``fixed``: the scripts about items read it for all values that never change."""
        policy = f"{self.retention}/{self.write or '-'}/{self.expire_after or '-'}"
        return f"{self.uid} {self.layout} {self.k} {policy} {shard}/{self.shards}"

    def check(self, settings: Settings, name: str) -> None:
        """Check that this configuration has the wanted settings; ``name`` is the filter's, for errors.

        Raises:
            ConfigMismatch: settings differ; the error has each of them.
        """
        free = {"shards", "seed", "rules"}
        asked = {name: value for name, value in asdict(settings).items() if value is not None or name not in free}
        if "rules" in asked:
            asked["rules"] = _or_none(asked["rules"])
        if "seed" in asked:
            asked["seed"] = new_seed(settings.hash, settings.seed)
        differences = {s: (v, getattr(self, s)) for s, v in asked.items() if getattr(self, s) != v}
        if differences:
            raise ConfigMismatch(f"{name}: the filter exists with other settings: {worded(differences)}", differences)


def worded(differences: Mapping[str, tuple[object, object]]) -> str:
    """Return a text about differences, as ``ConfigMismatch`` has them; it has no secret and no long values."""
    return ", ".join(
        _LONG.get(name) or f"{name} is {found!r} and not {wanted!r}" for name, (wanted, found) in differences.items()
    )


#: What is said of differences whose values are not.
_LONG = {"seed": "seed is another", "rules": "rules are others"}


def _or_none(rules: str) -> str | None:
    """Return canonical rules as a configuration has them; None: there are none."""
    return None if rules in {None, "[]"} else rules


#: Attributes whose fields in ``meta`` have other names.
_IN_META = {"slices": "window"}

#: The fields of ``meta`` that are no settings (``docs/design.md`` describes them).
_STATE = frozenset({
    "ahead", "archive_goes", "arranged", "before", "changed", "checkpoint", "checkpointed", "claimed", "claims",
    "closed", "created", "epoch", "fixed", "format", "halted", "inserted", "kept", "late", "leased", "limit", "lost",
    "made", "new", "oldest", "opened", "period_ms", "phase", "pieces", "refilled", "rejected", "restored", "restorer",
    "shard", "slices", "timeline", "token", "worked", "worker", "written",
})  # fmt: skip

#: All fields of ``meta``. One more is of a later release, and may be a setting that decides what an item is.
_KNOWN = _STATE | {_IN_META.get(each.name, each.name) for each in fields(Config)}

_READ = {"str": str, "int": int, "float": float}


def check_format(meta: dict[str, str], name: str) -> None:
    """Check that a ``meta`` is of this release's format; ``name`` is the filter's, for errors.

    Raises:
        SliceLost: the field ``format`` is missing or unreadable.
        UriFilterError: it is another format.
    """
    if not (found := meta.get("format", "")).isdecimal():
        raise damaged(name, f"format is {found!r}")
    if int(found) != FORMAT:
        raise UriFilterError(f"{name}: it is {other_format(int(found))}")


def other_format(found: int) -> str:
    """Say what is the matter with a filter or document of another format than this release's."""
    return f"of format {found}, and this release reads format {FORMAT}: use the release that wrote it"


def _has(meta: dict[str, str], each: Field[Any]) -> bool:
    """Whether to read a field; ``meta`` has no field for a None."""
    return "None" not in str(each.type) or _IN_META.get(each.name, each.name) in meta


def _read(each: Field[Any], meta: dict[str, str]) -> Any:
    return _READ[str(each.type).removesuffix(" | None")](meta[_IN_META.get(each.name, each.name)])
