"""``token``: access tokens for the HTTP service."""

from __future__ import annotations

import click

from urifilter_redis.protocol.keys import check_name
from urifilter_redis.service import tokens

from .common import Shared, pass_shared, print_json, say, shared


@click.group()
@shared
def token() -> None:
    """Access tokens for `urifilter serve`.

    \b
    Example:
      urifilter token new crawlers --filter news
    """


@token.command()
@click.argument("name")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="NAME",
    help="Allow this filter, or all of news-*; by default all filters.",
)
@click.option(
    "--access",
    type=click.Choice(tokens.ACCESS),
    default="write",
    show_default=True,
    help="write includes read, and admin both.",
)
@shared
@pass_shared
def new(options: Shared, name: str, filters: tuple[str, ...], access: str) -> None:
    """Make a token. Prints the lines for the settings, which have its hash, on stdout, and the token on stderr.

    The token is shown only this once.

    \b
    Example:
      urifilter token new crawlers --filter news
    """
    made = tokens.new()
    known = tokens.Token(check_name(name), tokens.digest(made), filters or ("*",), access)
    if options.json:
        fields = {"name": name, "digest": known.digest, "filters": known.filters, "access": access}
        print_json({"token": made, **fields})
        return
    click.echo(known.toml())
    say(f"the token, which is shown this once: {made}")
