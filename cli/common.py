"""What all commands share: options, errors, numbers, tables, and how they make and open filters."""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
import signal
import sys
import traceback
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from urifilter_redis.bloom.encoding import pack
from urifilter_redis.bloom.retention import period_of, seconds_of
from urifilter_redis.engine.steps import Timeouts
from urifilter_redis.errors import ConfigMismatch, TooLarge, UriFilterError
from urifilter_redis.protocol.keys import DEFAULT_PREFIX, check_name

from .signals import Interrupted, name_of
from .streams import STDERR, STDOUT, explained, to_nowhere

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from urifilter_redis import UriFilter

#: The exit code that a shell reports for a program that SIGPIPE ended.
BROKEN_PIPE = 141

#: The exit code of ``rotate --due`` and ``reclaim`` when nothing was due.
NOTHING_DUE = 3

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_SERVERS = "The server: redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://."
# No envvar=: an archive from the environment must not count as named by the caller, see Session.insists.
_ARCHIVE = "The archive: file:///folder or mongodb://host/database.  [env var: URIFILTER_ARCHIVE]"
_WAIT = "How long to wait for a filter that is being restored: 45s, 10m."
_TIMEOUT = "Repeat a call for so long if the server does not answer: 10s; by default 3s, on Sentinels and clusters 30s."
_NUMBER = re.compile(r"[\d.,e+-]+%?( ([kMGT]?B|ms|s|min|h|days))?|")

#: The settings of a filter that a command makes without being told its size. The capacity is that of its first slice.
DEFAULT_SETTINGS: dict[str, Any] = {"capacity": 10_000_000, "retention": "growing"}

#: A decorator of a command, as ``click.option`` makes it.
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

T = TypeVar("T")
Made = TypeVar("Made", bound="UriFilter")


@dataclass
class Shared:
    """The options that every command has.

    Attributes:
        redis: the server's address; None: the embedded server.
        prefix: the first part of all keys.
        archive: the archive's address; None: that of the environment, if any.
        wait: seconds to wait for a filter that is being restored.
        timeout: seconds for which a call is repeated if the server does not answer; None: the library's default.
        json: whether to print JSON.
        verbose: whether to print the traceback of an error.
        said: the names of the options that were given on the command line.
    """

    redis: str | None = None
    prefix: str = DEFAULT_PREFIX
    archive: str | None = None
    wait: float = 0.0
    timeout: float | None = None
    json: bool = False
    verbose: bool = False
    said: set[str] = field(default_factory=set)

    def where(self) -> dict[str, Any]:
        """Return the library's arguments for the server and the prefix."""
        timeouts = Timeouts(total=self.timeout, restoring=self.wait)
        return {"redis": self.redis, "prefix": self.prefix, "timeouts": timeouts}

    def filter(self) -> dict[str, Any]:
        """Return the library's arguments to open or create a filter."""
        return self.where() | {"archive": self.archive}

    def tell(
        self, value: object, *lines: str, quiet: bool = False, write: Callable[[str], object] = click.echo
    ) -> None:
        """Print the result of a command: with --json the value, else by ``write`` the lines, unless ``quiet``."""
        if self.json:
            print_json(value)
        elif not quiet:
            for line in lines:
                write(line)

    def tell_rows(self, values: list[Any], head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a list: with --json the values, else a table of rows."""
        if self.json:
            print_json(values)
        else:
            columns(head, rows)


pass_shared = click.make_pass_decorator(Shared, ensure=True)


def with_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds options, which the help shows in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def option_type(read: Callable[[str], T]) -> Callable[[str], T]:
    """Make a type for click of a function that raises ValueError: the option's error has its message."""

    @functools.wraps(read)
    def converted(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return converted


@option_type
def seconds(text: str) -> float:
    """Read a time: 45s, 10m, 6h."""
    return float(seconds_of(period_of(text)))


@option_type
def filter_name(text: str) -> str:
    """Read a filter's name. An impossible name ends the command before it does anything, also to the other filters."""
    return check_name(text)


@option_type
def count(text: str) -> int:
    """Read a number of items: 1000, 1_000_000, 10k, 100M, 2G, 1e8."""
    found = re.fullmatch(r"([\d_,]*\.?\d+(?:e\d+)?)([kmgb]?)", text.lower())
    number = float(re.sub("[_,]", "", found[1])) * _UNITS[found[2]] if found else 0.0
    if not found or not number.is_integer():  # an infinite one is none either
        raise ValueError(f"{text!r} is no number of items such as 1000, 10k, 100M or 1e8")
    return int(number)


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")


def shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options. They may stand before or after the command's name; the last one counts."""
    return with_options(
        click.option("--redis", metavar="URL", help=_SERVERS, **_kept("redis", envvar="URIFILTER_REDIS_URL")),
        click.option("--prefix", help="The first part of all keys.", **_kept("prefix", envvar="URIFILTER_PREFIX")),
        click.option("--archive", metavar="URL", help=_ARCHIVE, **_kept("archive")),
        click.option("--timeout", metavar="TIME", help=_TIMEOUT, **_kept("timeout", seconds)),
        click.option("--wait", metavar="TIME", help=_WAIT, **_kept("wait", seconds)),
        click.option("--json", is_flag=True, help="Print JSON.", **_kept("json")),
        click.option("-v", "--verbose", is_flag=True, help="Print the traceback of an error.", **_kept("verbose")),
    )(command)


def given_of(*names: str) -> list[str]:
    """Return those of a command's options, by their names in Python, that stand on the command line."""
    context = click.get_current_context()
    return [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def _kept(name: str, read: Callable[[Any], object] = lambda value: value, envvar: str | None = None) -> dict[str, Any]:
    """Return the arguments of an option whose value goes into ``Shared``."""

    def keep(context: click.Context, _: click.Parameter, value: object) -> None:
        options, source = context.ensure_object(Shared), context.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            if value == "":  # from an unset shell variable; falling back to the environment would surprise
                raise click.BadParameter("it is empty: say a value, or leave the option out")
            options.said.add(name)
        elif source is not ParameterSource.ENVIRONMENT or name in options.said:
            return
        setattr(options, name, read(value))

    return {"expose_value": False, "callback": keep, "envvar": envvar, "show_envvar": envvar is not None}


class Group(click.Group):
    """A group whose commands end with a message on stderr and an exit code, never with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn its errors into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            to_nowhere(STDOUT)
            ctx.exit(BROKEN_PIPE)
        except (Interrupted, KeyboardInterrupt) as stopped:
            number = stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT
            complain(f"stopped by {name_of(number)}", "Interrupted")
            ctx.exit(128 + number)
        except click.UsageError as error:
            if not ctx.ensure_object(Shared).json:
                raise
            complain(error.format_message(), "UsageError")
            ctx.exit(error.exit_code)
        except (click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except Exception as error:  # noqa: BLE001 - 1, as Python would end, is an answer of some commands
            if ctx.ensure_object(Shared).verbose:
                say(traceback.format_exc().rstrip())
            kind, text = type(error).__name__, explained(error)
            if not isinstance(error, UriFilterError | ValueError | OSError):
                text = f"unexpected {kind}: {text} (urifilter -v … shows where; please report it)"
            complain(text, kind)
            ctx.exit(2)


def moment(seconds: float) -> str:
    """Return a time as text, UTC."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def json_item(item: Any) -> Any:
    """Return an item for JSON: a string if ``--jsonl`` reads that as the same item, else an object or a number."""
    try:
        return item.decode() if isinstance(item, bytes) else item
    except UnicodeDecodeError:
        return {"base64": b64encode(item).decode()}


def say(text: str) -> None:
    """Write a line to stderr, unless its reader is gone."""
    try:
        click.echo(text, err=True)
    except OSError:
        to_nowhere(STDERR)


def complain(text: str, kind: str) -> None:
    """Write an error to stderr: as text, or with --json as an object; ``kind`` is the name of its class in Python."""
    context = click.get_current_context(silent=True)
    options = context.find_object(Shared) if context else None
    say(json.dumps({"error": text, "kind": kind}) if options and options.json else f"urifilter: {text}")


def counted(number: int, what: str) -> str:
    """Return a number with its noun: ``1 line``, ``2 lines``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def print_json(value: object) -> None:
    """Write a value to stdout as indented JSON."""
    click.echo(json.dumps(value, indent=2))


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to stdout, with columns of numbers aligned to the right."""
    table = [list(head), *([_cell(cell) for cell in row] for row in rows)]
    padded = []
    for column in zip(*table, strict=True):
        width = max(map(len, column))
        number = all(map(_NUMBER.fullmatch, column[1:]))
        padded.append([cell.rjust(width) if number else cell.ljust(width) for cell in column])
    for row in zip(*padded, strict=True):
        click.echo("  ".join(row).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def packed(item: bytes) -> bytes:
    """Pack a line as claims keep it: as text if it is UTF-8, for crawlers to which a URI is a str."""
    try:
        return pack(item.decode())
    except UnicodeDecodeError:
        return pack(item)


def made(kind: type[Made], name: str, **settings: Any) -> Made:
    """Make a filter of a class; if it is large and stdin is a terminal, ask first."""
    try:
        return kind.create(name, **settings)
    except TooLarge as error:
        if not error.fits:
            raise
        confirm(error, "Make it?")
    return kind.create(name, **(settings | {"large": True}))


def confirm(error: UriFilterError, question: str) -> None:
    """Ask whether to do all the same what an error has refused; raise it if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise error
    click.confirm(f"{error}. {question}", abort=True, err=True)


def over_capacity(news: UriFilter) -> str:
    """Return the notice that a filter has more items than it is made for; an empty text if it has not."""
    config = news.config
    if config.retention == "growing" or config.expire_after == "last-seen":  # the first grows; the other counts often
        return ""
    inserted = news.inserted()
    if inserted <= config.capacity:
        return ""
    text = f"filter {news.name} is over its capacity: {inserted:,} of {config.capacity:,}"
    return f"{text}; it goes on working, with more items wrongly seen"


def open_one_of_all(options: Shared, name: str) -> UriFilter:
    """Open one filter of the list; ignore the named archive if the filter was created without one."""
    from urifilter_redis import UriFilter  # noqa: PLC0415 - with redis-py, which ``--help`` does not wait for

    try:
        return UriFilter.open(name, **options.filter())
    except ConfigMismatch as error:
        if "archive" not in error.differences:
            raise
        return UriFilter.open(name, **options.filter() | {"archive": ""})
