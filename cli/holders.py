"""The parts that the commands about claims share: leases, holders and their signs of life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from urifilter_redis.claiming.base import Beating
from urifilter_redis.engine.holdings import BEATS
from urifilter_redis.errors import UriFilterError
from urifilter_redis.protocol.claims import check_holder, check_lease

from .common import say, seconds
from .printing import Undoing

if TYPE_CHECKING:
    from urifilter_redis import UriFilter
    from urifilter_redis.claiming.blocking import Claims

__all__ = ["beating", "checked", "given_back", "hint", "holder_of", "holder_option", "lease_option"]

#: The default lease. A shell does not beat by itself: this is the time to work through some lines once ``claim`` has
#: ended.
LEASE = "5m"

F = TypeVar("F", bound=Callable[..., Any])


def checked(check: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Make a callback that refuses an option's value in the words of the library; None stays None."""

    def callback(_: click.Context, __: click.Parameter, value: Any) -> Any:
        try:
            return None if value is None else check(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def holder_of(text: str) -> str:
    """Read a holder: 16 hex digits."""
    try:
        return check_holder(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def holder_option(text: str) -> Callable[[F], F]:
    """Add ``--holder``."""
    return click.option("--holder", type=holder_of, metavar="HOLDER", help=text)


def lease_option(text: str = "How long lines stay in hand without a sign of life: 5s to 1h.") -> Callable[[F], F]:
    """Add ``--lease``, in seconds."""
    more: dict[str, Any] = {"default": LEASE, "show_default": True, "help": text}
    return click.option("--lease", type=seconds, callback=checked(check_lease), metavar="TIME", **more)


def hint(name: str, holder: str, lease: float) -> str:
    """Return the text that says who has the lines of a command in hand, and how they stay there for longer."""
    longer = "" if lease == seconds(LEASE) else f" --lease {lease:g}s"
    return f"holder {holder}: its lines stay in hand for longer with: urifilter beat --filter {name}{longer} {holder}"


def given_back(mine: Claims) -> Undoing:
    """Return how lines that were taken in hand, and that the reader may not have got, are given back."""
    return Undoing(
        mine.release,
        line="claimed line",
        did="claimed",
        undone="given back",
        undo="given back before their lease is over",
        doubt="`urifilter reclaim` offers them when their lease is over",
    )


@contextmanager
def beating(news: UriFilter, mine: Claims, *, quiet: bool) -> Iterator[None]:
    """Beat while a command waits for its input, or for the reader of its lines."""
    heart = _Heart(news, mine, quiet=quiet)
    thread = Beating(heart.beat, mine.lease * BEATS)
    thread.start()
    try:
        yield
    finally:
        thread.stop(mine.lease)


class _Heart:
    """Beats for a holder in all shards. The command does not know which lines of it were committed by others."""

    def __init__(self, news: UriFilter, mine: Claims, *, quiet: bool) -> None:
        self._news, self._mine, self._quiet = news, mine, quiet
        self._told = ""

    def beat(self) -> None:
        """Beat once. A failure is told, the same one once, and the next beat may work."""
        try:
            self._news.beat(self._mine.holder, self._mine.lease)
        except UriFilterError as error:
            if not self._quiet and str(error) != self._told:
                self._told = str(error)
                say(f"urifilter: a sign of life failed, and is repeated: {error}")
