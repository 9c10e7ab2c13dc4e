"""The actions of the blocking client on whole filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from urifilter_redis.protocol.config import FilterSettings  # noqa: TC001 - pages of the reference link to it
from urifilter_redis.sdk import actions

if TYPE_CHECKING:
    from urifilter_redis.flows.checkpoint import Written
    from urifilter_redis.flows.rotation import Rotation
    from urifilter_redis.sdk.api import API

__all__ = ["Acting"]


class Acting:
    """The methods for tokens with ``access = "admin"``. Each may be repeated after an error: nothing is done twice.

    An action that takes longer than ``timeouts.reply`` goes on in the service. The client asks again, and waits for it
    until ``timeouts.total`` is over.
    """

    _api: API
    _run: Any

    def create(self, filter_typeid: str, *, large: bool = False, **settings: Unpack[FilterSettings]) -> str:
        """Make a filter; if it exists with these settings, do nothing.

        Args:
            filter_typeid: the filter's name: 1 to 64 of ``A-Z a-z 0-9 . _ -``.
            large: make the filter even if it leaves Redis too little free memory.
            settings: those of ``UriFilter.create``: ``capacity``, ``error_rate``, ``retention`` and so on.

        Returns:
            The uid of the filter.

        Raises:
            FilterAPIError: the service refused (``config_mismatch``: the filter exists with other settings;
                ``refused``: it is too large for Redis), or could not be reached.

        Example:
            >>> uid = api.create("weather", capacity=1000, retention="ring", slices=3, period="1d")
            >>> len(uid)
            16
        """
        return self._run(actions.create(self._api, filter_typeid, settings, large=large))  # type: ignore[no-any-return]

    def rotate(self, filter_typeid: str, expected_epoch: int | None = None, *, dry_run: bool = False) -> Rotation:
        """Rotate a ring or rolling filter once.

        Args:
            filter_typeid: the filter's name.
            expected_epoch: rotate only if the filter is in this epoch, so that one of many processes rotates; None: in
                the epoch that it is in now.
            dry_run: change nothing; return the epoch that would be reached.

        Returns:
            The epoch, the number of shards that this call turned, and the problems of the archive. No shard was turned
            if the filter was past ``expected_epoch`` already: others rotated it, or an attempt whose reply was lost.

        Raises:
            FilterAPIError: the service refused (``refused``: the filter does not rotate by time), or could not be
                reached.

        Example:
            >>> uid = api.create("weather", capacity=1000, retention="ring", slices=3, period="1d")
            >>> (api.rotate("weather", 0)).epoch, (api.rotate("weather", 0)).shards
            (1, 0)
        """
        return self._run(actions.rotate(self._api, filter_typeid, expected_epoch, dry_run=dry_run))  # type: ignore[no-any-return]

    def checkpoint(self, filter_typeid: str, *, full: bool = False) -> Written:
        """Write all changes since the last checkpoint to the service's archive; inserts go on meanwhile.

        Args:
            filter_typeid: the filter's name.
            full: write all shards, also unchanged ones; for an archive that was damaged.

        Raises:
            FilterAPIError: the service refused (``refused``: it has no archive), or could not be reached.

        Example:
            >>> api.checkpoint("news")
            Traceback (most recent call last):
            urifilter_redis.errors.FilterAPIError: ...
        """
        return self._run(actions.checkpoint(self._api, filter_typeid, full=full))  # type: ignore[no-any-return]

    def restore(self, filter_typeid: str) -> str:
        """Bring back from the service's archive the filter, or the parts of it, that Redis lacks.

        Args:
            filter_typeid: the filter's name.

        Returns:
            The uid of the filter.

        Raises:
            FilterAPIError: the service refused (``refused``: it has no archive; ``filter_not_found``), or could not be
                reached.

        Example:
            >>> api.restore("news")
            Traceback (most recent call last):
            urifilter_redis.errors.FilterAPIError: ...
        """
        return self._run(actions.restore(self._api, filter_typeid))  # type: ignore[no-any-return]

    def union(self, filter_typeid: str, *sources: str, over_capacity: bool = False) -> int:
        """Insert all items that other filters have seen, of equal geometry, hash and seed.

        Args:
            filter_typeid: the filter's name.
            sources: the names of the other filters.
            over_capacity: merge them even if the result is over capacity, or wrong more often than was asked for.

        Returns:
            The approximate number of items that were added.

        Raises:
            FilterAPIError: the service refused (``config_mismatch``: a source is of another kind; ``over_capacity``:
                the result would be over capacity), or could not be reached.

        Example:
            >>> uid = api.create("all", capacity=1000, seed=1)
            >>> uid = api.create("monday", capacity=1000, seed=1)
            >>> api.union("all", "monday")
            0
        """
        done = actions.union(self._api, filter_typeid, sources, over_capacity=over_capacity)
        return self._run(done)  # type: ignore[no-any-return]

    def drop(self, filter_typeid: str, uid: str, *, keep_archive: bool = False) -> bool:
        """Remove a filter with all its items, and its archive unless ``keep_archive``.

        Args:
            filter_typeid: the filter's name.
            uid: its uid, as ``info`` and ``create`` tell it: no other filter of this name is removed.
            keep_archive: keep the filter in its archive, so that it can be restored.

        Returns:
            Whether there was a filter of this uid; False, too, if an attempt removed it whose reply was lost.

        Raises:
            FilterAPIError: the service refused (``refused``: its settings have the filter), or could not be reached.

        Example:
            >>> uid = api.create("weather", capacity=1000)
            >>> api.drop("weather", uid), api.drop("weather", uid)
            (True, False)
        """
        return self._run(actions.drop(self._api, filter_typeid, uid, keep_archive=keep_archive))  # type: ignore[no-any-return]
