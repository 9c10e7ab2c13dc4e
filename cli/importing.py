"""``import``: the items of another tool go into a filter."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from urifilter_redis import FilterNotFound, UriFilterError
from urifilter_redis.bloom.digest import new_seed
from urifilter_redis.bloom.retention import size_first
from urifilter_redis.bloom.rules import canonical_rules
from urifilter_redis.importing.importer import Import, Receiver
from urifilter_redis.importing.sources import Digests, Peeked, SetSource, Source, Window

from .common import (
    DEFAULT_SETTINGS,
    Shared,
    complain,
    counted,
    filter_name,
    made,
    over_capacity,
    pass_shared,
    print_json,
    say,
    shared,
)
from .filters import identity_options, layout_option, size_options, time_options, yes_option
from .line_commands import form_options
from .lines import STDIN, is_converted, placed_windows, total_size
from .progress import bar
from .records import PLAIN, Form, Place
from .signals import Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from urifilter_redis import Config

#: A new filter for a set has room for so many times its members.
HEADROOM = 2

#: The least capacity of a new filter for a set.
LEAST = 10_000

_EXPECT = f"Items that the filter is for: 10M, 1e8. By default {HEADROOM} x the members of --set; for files it grows."
_SET = "Read the members of this set or sorted set, instead of files."
_FROM = "The server of --set, if it is not the filter's."
_ITEMS = "What URIFILTER_KEY of Scrapy's add-on makes such items. Of a set it is found out."
_DIGESTS = "The items are digests by --hash: 32 hex digits (in a set also 16 bytes). They are not hashed again."

#: The kinds of ``URIFILTER_KEY``: what a filter that a crawl has made remembers.
KEYS = ("fingerprint", "url", "function")

_SHA1, _ADDRESS = re.compile(rb"[0-9a-f]{40}"), re.compile(rb"https?://")


class FileSource:
    """The lines of files, or of stdin; see ``Source``. ``form`` says how they are read."""

    raw = False

    def __init__(self, files: Sequence[str], wait: Callable[[int], None], form: Form = PLAIN) -> None:
        self._files, self._wait, self._form = files, wait, form
        self.noun = form.noun
        paths = (each if each == STDIN else str(Path(each).absolute()) for each in files)
        kind = "files" if form == PLAIN else f"files {json.dumps(asdict(form), sort_keys=True)}"
        self.names: Sequence[str] = (kind, *paths)
        self.total = None if any(map(is_converted, files)) else total_size(files)
        self._found = [_state_of(name) for name in files]

    def state(self) -> dict[str, Any] | None:
        """Return the size and the time of the last change of all files before the reading; None if one is a pipe."""
        return {"files": self._found} if all(self._found) else None

    def is_still(self, state: dict[str, Any], _: Any) -> bool:
        """Whether the files have the same sizes and times of the last change."""
        return state == self.state()

    def windows(self, place: Any, bad: Callable[[str], None], /) -> Iterator[Window]:
        """Yield the lines after a place in windows."""
        begin = Place(*place) if place else Place()
        before = number = 0
        for window, end in placed_windows(self._files, bad, wait=self._wait, begin=begin, form=self._form):
            if not window:  # only a header
                continue
            while number < end.file:
                before += total_size(self._files[number : number + 1]) or 0
                number += 1
            yield Window([*window.items], [end.file, end.offset, end.lines], before + end.offset)


def _state_of(name: str) -> list[int]:
    """Return numbers that change with a file; an empty list for what cannot be read twice."""
    try:
        found = os.stat(name)  # noqa: PTH116 - as in lines
    except OSError:
        return []
    regular = name != STDIN and stat.S_ISREG(found.st_mode)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns] if regular else []


@click.command(name="import")
@click.argument("name", type=filter_name)
@click.argument("files", nargs=-1, type=click.Path(allow_dash=True))
@click.option("--set", "key", metavar="KEY", help=_SET)
@click.option("--from", "origin", metavar="URL", help=_FROM)
@click.option("--digests", is_flag=True, help=_DIGESTS)
@click.option("--items", type=click.Choice(KEYS), help=_ITEMS)
@form_options
@click.option("--restart", is_flag=True, help="Begin anew, also if an earlier run was interrupted.")
@click.option("-q", "--quiet", is_flag=True, help="No summary and no progress on stderr.")
@size_options(required=False, capacity="--expect", text=_EXPECT)
@layout_option
@time_options
@identity_options
@yes_option
@shared
@pass_shared
@click.pass_context
def import_(
    context: click.Context,
    options: Shared,
    /,
    name: str,
    files: tuple[str, ...],
    key: str | None,
    origin: str | None,
    *,
    form: Form,
    digests: bool,
    items: str | None,
    restart: bool,
    quiet: bool,
    yes: bool,
    **settings: Any,
) -> None:
    """Insert the members of a Redis set, or the lines of files or of stdin, into a filter.

    The filter is made if it does not exist; the settings of one that exists stay. The same command goes on where an
    interrupted one stopped, unless the filter has lost items, or the set or the files show a change. A few members of
    a set may be replaced unnoticed: use --restart if that is possible. A pipe is read from its beginning.

    \b
    Example:
      urifilter import news --set spider:dupefilter
    """
    if key is not None and files:
        raise click.UsageError("--set reads a set, and files were named, too: import them one after the other")
    if key is not None and form != PLAIN:
        raise click.UsageError("--set reads a set, and an option says how files are read: leave one out")
    if origin is not None and key is None:
        raise click.UsageError("--from is the server of --set KEY: name the key")
    messages = _Messages(options, name, form, quiet=quiet)
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals())
        with signals.allowed():
            source = stack.enter_context(_source(key, origin or options.redis, files, form, signals))
            wanted = _Wanted(context, settings, source, digests=digests, items=items)
            if digests:
                source = Digests(source)
            receiver, source = _opened(options, name, source, wanted, messages, stack, yes=yes)
            importing = Import(receiver, source, _left_out, digests=digests, restart=restart)
            messages.begun(importing, receiver, source, wanted.expected)
        try:
            _run(importing, source, signals, messages)
        except BaseException:
            messages.stopped(importing, source)
            raise
        messages.ended(importing, source, receiver)


def _source(
    key: str | None, server: str | None, files: tuple[str, ...], form: Form, signals: Signals
) -> contextlib.AbstractContextManager[Source]:
    if key is not None:
        return SetSource(os.fsencode(key), redis=server)
    return contextlib.nullcontext(FileSource(files or (STDIN,), signals.wait, form))


class _Wanted:
    """The settings of a new filter, from the options.

    Attributes:
        digests: whether the items are digests.
        given: the names of the settings on the command line.
        expected: the number of items to come; None: it is not known.
        settings: the arguments of ``create``.
        items: what ``URIFILTER_KEY`` makes such items; None: it was not said.
    """

    def __init__(
        self, context: click.Context, settings: dict[str, Any], source: Source, *, digests: bool, items: str | None
    ) -> None:
        self.digests, self.items = digests, items
        self.given = {each for each in settings if context.get_parameter_source(each) is not ParameterSource.DEFAULT}
        members = source.total if isinstance(source, SetSource) else None
        self.expected: int | None = settings["capacity"] if members is None else members
        self.settings = settings
        if settings["capacity"] is None and members is not None:
            settings["capacity"] = max(LEAST, HEADROOM * members)

    def checked(self) -> dict[str, Any]:
        """Return the settings of the filter to make; raise UsageError if options are missing."""
        settings = dict(self.settings)
        if self.digests and not {"hash", "seed"} <= self.given and settings["hash"] != "md5":
            text = "the filter does not exist, and the digests were made by one hash: say --hash md5, or another"
            raise click.UsageError(f"{text} --hash with its --seed")
        if settings["capacity"] is None:
            if settings["retention"] != "growing" and "retention" in self.given:
                raise click.UsageError("--expect is missing: how many items, such as 10M or 1e8")
            settings |= DEFAULT_SETTINGS
        elif settings["retention"] == "ring" and settings["write"] != "all" and settings["period_capacity"] is None:
            # all items come in one period
            usual = HEADROOM * settings["capacity"] // (settings["slices"] or 1)
            settings["period_capacity"] = max(self.expected or 0, usual)
        return settings

    def check_digests(self, name: str, config: Config) -> None:
        """Check that the items of a filter have the digests that are imported.

        Raises:
            UsageError: the filter has another hash, seed or normalisation, or the command line does not say them.
            ValueError: the hash does not take the seed.
        """
        if not self.digests:
            return
        if "hash" in self.given and self.settings["hash"] != config.hash:
            text = f"filter {name} has the hash {config.hash}: digests of another are none of its items"
            raise click.UsageError(text)
        if config.hash != "md5" and not {"hash", "seed"} <= self.given:
            text = f"filter {name} has the hash {config.hash}, with a seed (`urifilter info --json {name}`)"
            raise click.UsageError(f"{text}: if the digests were made with both, say --hash and --seed")
        if "seed" in self.given and new_seed(config.hash, self.settings["seed"]) != config.seed:
            raise click.UsageError(f"filter {name} has another seed: digests of this one are none of its items")
        if config.normalize != self.settings["normalize"]:
            text = f"filter {name} has the normalisation {config.normalize}, and digests do not show theirs"
            raise click.UsageError(f"{text}: if it is the same, say --normalize {config.normalize}")
        rules = None if self.settings["rules"] is None else canonical_rules(self.settings["rules"], config.normalize)
        if (rules or "[]") != (config.rules or "[]"):
            text = f"filter {name} has {'other' if config.rules else 'no'} rules, and digests do not show theirs"
            raise click.UsageError(f"{text}: say --rules FILE with its own" if config.rules else text)


def _opened(
    options: Shared,
    name: str,
    source: Source,
    wanted: _Wanted,
    messages: _Messages,
    stack: contextlib.ExitStack,
    *,
    yes: bool,
) -> tuple[Receiver, Source]:
    """Open the filter, or make it once the source's first window is read; return the source to read on from."""
    try:
        found = stack.enter_context(Receiver.open(name, **options.filter()))
    except FilterNotFound:
        settings = wanted.checked()
        peeked = stack.enter_context(contextlib.closing(Peeked(source)))
        if peeked.first is None and peeked.messages:
            for message in peeked.messages:
                _left_out(message)
            raise UriFilterError(f"nothing could be read, so filter {name!r} was not made") from None
        if wanted.items is None and isinstance(source, SetSource) and peeked.first is not None:
            settings["items"] = _key_of(peeked.first.items)
        else:
            settings["items"] = wanted.items
        return stack.enter_context(made(Receiver, name, **options.filter(), **settings, large=yes)), peeked
    wanted.check_digests(name, found.config)
    if wanted.given - ({"capacity", "hash", "seed", "normalize", "rules"} if wanted.digests else {"capacity"}):
        messages.note(f"filter {name} exists: its own settings count")
    return found, source


def _key_of(members: Sequence[object]) -> str | None:
    """Return what ``URIFILTER_KEY`` makes the members of a set: addresses, or the fingerprints of scrapy-redis.

    These are not Scrapy's own, so a function of the project makes them. Other members may be anything.
    """
    if all(isinstance(each, bytes) and _SHA1.fullmatch(each) for each in members):
        return "function"
    return "url" if all(isinstance(each, bytes) and _ADDRESS.match(each) for each in members) else None


def _run(importing: Import, source: Source, signals: Signals, messages: _Messages) -> None:
    with bar("import", quiet=messages.quiet) as report:
        windows = importing.windows()
        while True:
            with signals.allowed():
                window = next(windows, None)
            if window is None:
                break
            if window.begun_anew:
                messages.note(f"begins anew: {window.begun_anew}")
            importing.insert(window)
            report(importing.counts.items if window.done is None else window.done, source.total)
    importing.finish()


def _left_out(message: str) -> None:
    complain(message, "Unreadable")


class _Messages:
    """The messages of an import; ``quiet`` leaves out notices and progress."""

    def __init__(self, options: Shared, name: str, form: Form, *, quiet: bool) -> None:
        self._options, self._name, self._form, self.quiet = options, name, form, quiet

    def note(self, text: str) -> None:
        """Write a notice to stderr, unless --quiet."""
        if not self.quiet:
            say(f"import: {text}")

    def begun(self, importing: Import, receiver: Receiver, source: Source, expected: int | None) -> None:
        """Say where the import begins, and whether the filter has too little room."""
        if importing.begun_anew:
            self.note(f"begins anew: {importing.begun_anew}")
        if importing.resumed:
            done = counted(importing.resumed, source.noun)
            self.note(f"goes on after {done} of an earlier run (--restart begins anew)")
        config = receiver.config
        more = (expected or 0) - importing.resumed
        if config.retention == "growing" or more <= 0:
            return
        room = max(0, min(config.capacity - receiver.inserted(), size_first(config).capacity))
        if more > room:
            text = f"filter {self._name} has room for {room:,} more items, and {more:,} are expected"
            self.note(f"{text}: with more than that, more items are wrongly seen")

    def stopped(self, importing: Import, source: Source) -> None:
        """Note how far the import came, and say so."""
        if importing.can_resume and importing.counts.items:
            importing.keep()
            done = counted(importing.counts.items, source.noun)
            self.note(f"stopped after {done}: the same command goes on there")

    def ended(self, importing: Import, source: Source, receiver: Receiver) -> None:
        """Print the summary, and whether the filter is too full; exit with 2 if anything was left out."""
        counts = importing.counts
        notice = over_capacity(receiver) if self._options.json or not self.quiet else ""
        if self._options.json:
            about = {"filter": self._name, "source": [*source.names[1:]], "seen": counts.items - counts.new}
            about |= asdict(counts) | {"resumed": importing.resumed, "begun_anew": importing.begun_anew or None}
            print_json(about | self._form.about() | {"over_capacity": bool(notice)})
        else:
            left_out = f", {counts.bad:,} left out" if counts.bad else ""
            seen = f"{counts.new:,} new, {counts.items - counts.new:,} seen before{left_out}"
            self.note(f"{counted(counts.items, source.noun)}{self._form.of_field}: {seen} (filter {self._name})")
        if notice:
            self.note(notice)
        if counts.bad:
            raise click.exceptions.Exit(2)
