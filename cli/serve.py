"""``serve``: the HTTP service."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from urifilter_redis import Restoring, ServerUnavailable, UriFilterError
from urifilter_redis.extras import how_to_get

from .common import Shared, pass_shared, say, shared
from .daemon import add_stop_and_status, background, check_background, daemon_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from urifilter_redis.service.settings import ServiceSettings

_NEEDED = ("fastapi_swagger", "httptools", "prometheus_client", "pydantic_settings", "starlette", "uvicorn")
_HOST = "Address to listen at; 127.0.0.1 by default. Any other wants tokens."


@click.group(invoke_without_command=True)
@click.option("--settings", "file", type=click.Path(path_type=Path), envvar="URIFILTER_SETTINGS", show_envvar=True,
              metavar="FILE", help="A TOML file; flags and the environment (URIFILTER_PORT …) beat it.")  # fmt: skip
@click.option("--host", help=_HOST)
@click.option("--port", type=int, help="8000 by default; 0: any free port, which stderr names.")
@click.option("--workers", type=int, help="Number of processes; 1 by default.")
@click.option("--log-format", help="text or json: the form of the log on stderr.")
@click.option("--log-requests", is_flag=True, default=None, help="Log each request, too.")
@daemon_options
@shared
@pass_shared
@click.pass_context
def serve(
    context: click.Context,
    options: Shared,
    /,
    file: Path | None,
    *,
    daemon: bool,
    pidfile: Path | None,
    log_file: Path | None,
    **flags: Any,
) -> None:
    """Answer crawlers over HTTP: POST a list of URIs, get back those that nobody has seen.

    SIGTERM ends it once the requests under way are answered. SIGHUP has it read its settings again; those about tokens,
    proxies and the log of requests change without a restart. The page at / shows the state of the filters.

    \b
    Example:
      urifilter serve --redis redis://localhost:6379/0 --workers 2
    """
    if context.invoked_subcommand is not None:
        return
    check_background(daemon=daemon, pidfile=pidfile, log_file=log_file)
    settings, read, server = _load(_said(options, flags), file)
    _try_filters(settings)
    bound = server.listen(settings.host, settings.port)
    host, port = bound.getsockname()[:2]
    keeps = [bound.fileno()]
    held = server.held_signals()
    with held as release, background(daemon=daemon, pidfile=pidfile, log_file=log_file, keeps=keeps):
        say(f"listens at http://{f'[{host}]' if ':' in host else host}:{port}")
        server.serve(settings, bound, release, read, log_file, daemon=daemon)


def _said(options: Shared, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that the command line gives, and no others."""
    shared_ones = {"redis": "redis_url", "prefix": "prefix", "archive": "archive", "timeout": "timeout"}
    said = {setting: getattr(options, name) for name, setting in shared_ones.items() if name in options.said}
    return said | {name: value for name, value in flags.items() if value is not None}


def _load(
    flags: dict[str, Any], file: Path | None
) -> tuple[ServiceSettings, Callable[[], ServiceSettings], ModuleType]:
    """Return the settings, a function that reads them again from any folder, and the module that serves."""
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        text = f"serve needs more packages: {how_to_get('server')}"
        raise UriFilterError(f"{text} (missing: {', '.join(missing)})")
    from urifilter_redis.service import server, settings  # noqa: PLC0415 - an extra

    read = functools.partial(settings.load, flags, file and file.absolute())
    return read(), read, server


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # sys.modules has something else of this name
        return False


def _try_filters(settings: ServiceSettings) -> None:
    """Make or open all filters once, so that mistakes show at once; servers that are away may come back later."""
    from urifilter_redis.service.filters import is_away, try_all  # noqa: PLC0415 - an extra

    try:
        try_all(settings)
    except UriFilterError as error:
        if not (isinstance(error, ServerUnavailable | Restoring) or is_away(error)):
            raise
        say(f"urifilter: {error}; answering 503 until it is back")


add_stop_and_status(serve, "service")
