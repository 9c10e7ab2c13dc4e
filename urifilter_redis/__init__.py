"""A shared, atomic "has anybody seen this URI?" for many crawlers, inside an ordinary Redis or Valkey.

``UriFilter`` and ``AsyncUriFilter`` are the clients; ``errors`` has everything that they raise.
"""

import importlib
import pathlib
from typing import TYPE_CHECKING, Any

from urifilter_redis import _starting  # noqa: F401 - before what takes a while to import
from urifilter_redis._version import __version__
from urifilter_redis.errors import (
    AnswerLost,
    ArchiveCorrupt,
    ArchiveError,
    ArchiveMissing,
    BadItem,
    ConfigMismatch,
    FilterAPIError,
    FilterFull,
    FilterNotFound,
    OverCapacity,
    Restoring,
    RotationConflict,
    ServerFull,
    ServerUnavailable,
    SliceLost,
    TooLarge,
    Unsupported,
    UriFilterError,
)

if TYPE_CHECKING:
    from urifilter_redis.aio import AsyncUriFilter
    from urifilter_redis.base_blocking import drop_filter, list_filters
    from urifilter_redis.bloom.sizing import Slice
    from urifilter_redis.claiming.awaited import AsyncClaims
    from urifilter_redis.claiming.blocking import Claims
    from urifilter_redis.client import UriFilter
    from urifilter_redis.engine.holdings import Claim, Outstanding
    from urifilter_redis.engine.near_cache import NearCacheInfo
    from urifilter_redis.engine.session import Restored
    from urifilter_redis.engine.steps import Timeouts
    from urifilter_redis.flows.checkpoint import Written
    from urifilter_redis.flows.claims_info import ClaimsInfo
    from urifilter_redis.flows.info import FilterInfo, SliceInfo
    from urifilter_redis.flows.loss import Loss
    from urifilter_redis.flows.rotation import Rotation
    from urifilter_redis.protocol.claims import DeadLetter, InFlight
    from urifilter_redis.protocol.config import Config, FilterSettings
    from urifilter_redis.protocol.meta import View

__all__ = [
    "AnswerLost",
    "ArchiveCorrupt",
    "ArchiveError",
    "ArchiveMissing",
    "AsyncClaims",
    "AsyncUriFilter",
    "BadItem",
    "Claim",
    "Claims",
    "ClaimsInfo",
    "Config",
    "ConfigMismatch",
    "DeadLetter",
    "FilterAPIError",
    "FilterFull",
    "FilterInfo",
    "FilterNotFound",
    "FilterSettings",
    "InFlight",
    "Loss",
    "NearCacheInfo",
    "Outstanding",
    "OverCapacity",
    "Restored",
    "Restoring",
    "Rotation",
    "RotationConflict",
    "ServerFull",
    "ServerUnavailable",
    "Slice",
    "SliceInfo",
    "SliceLost",
    "Timeouts",
    "TooLarge",
    "Unsupported",
    "UriFilter",
    "UriFilterError",
    "View",
    "Written",
    "__version__",
    "drop_filter",
    "list_filters",
]

#: The modules of all other public names. A module is loaded when its name is first used, because redis-py and the
#: clients take a while.
_PLACES = {
    "AsyncClaims": "claiming.awaited",
    "AsyncUriFilter": "aio",
    "Claim": "engine.holdings",
    "Claims": "claiming.blocking",
    "ClaimsInfo": "flows.claims_info",
    "Config": "protocol.config",
    "FilterInfo": "flows.info",
    "FilterSettings": "protocol.config",
    "DeadLetter": "protocol.claims",
    "InFlight": "protocol.claims",
    "Loss": "flows.loss",
    "NearCacheInfo": "engine.near_cache",
    "Outstanding": "engine.holdings",
    "Restored": "engine.session",
    "Rotation": "flows.rotation",
    "Slice": "bloom.sizing",
    "SliceInfo": "flows.info",
    "Timeouts": "engine.steps",
    "UriFilter": "client",
    "View": "protocol.meta",
    "Written": "flows.checkpoint",
    "drop_filter": "base_blocking",
    "list_filters": "base_blocking",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_checkout = pathlib.Path(__file__).resolve().parents[1]
if not pathlib.Path(__file__).with_name("lua").exists() and (_checkout / "lua" / "insert.lua").is_file():
    __path__.append(str(_checkout))  # where lua/ and cli/ stand beside the package, and not inside it as installed
