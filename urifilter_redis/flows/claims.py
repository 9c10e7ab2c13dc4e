"""The flows of ``claim``, ``commit`` and ``release``: batches like those of ``insert``, with claim options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from urifilter_redis.bloom.digest import shards_of, split
from urifilter_redis.checks import check_flag, check_function, check_text
from urifilter_redis.engine.batch import Batch, Key, Method
from urifilter_redis.engine.holdings import Claim, Claiming, ClaimOptions, Committing, Holdings, Releasing
from urifilter_redis.engine.session import Session
from urifilter_redis.engine.steps import Flow
from urifilter_redis.errors import UriFilterError
from urifilter_redis.flows.items import batch_of, distrust, resolve
from urifilter_redis.protocol.claims import (
    IN_FLIGHT,
    MOST_REASON,
    Counts,
    Holding,
    check_delay,
    check_holder,
    check_lease,
    default_lease,
)

R = TypeVar("R")


def holding_of(session: Session, holder: str, lease: float | None = None) -> Holding:
    """Return a holder with its lease; ``lease`` is in seconds, None: the filter's default.

    Raises:
        ValueError: the holder or the lease is impossible.
    """
    seconds = default_lease(session.config.shards) if lease is None else check_lease(lease)
    return Holding(check_holder(holder), round(seconds * 1000))


def options_of_claim(  # noqa: PLR0913 - what a caller may say
    holding: Holding,
    objects: Sequence[Any],
    key: Key = None,
    payload: Callable[[Any], object] | None = None,
    holdings: Holdings | None = None,
    *,
    counts: dict[int, Counts] | None = None,
) -> Claiming:
    """Return the options of a claim.

    Args:
        holding: the holder and its lease.
        objects: the caller's objects.
        key: makes an item of each object; None: the objects are the items.
        payload: makes a payload of each object that is asked about; None: each item is its own payload.
        holdings: note the answers; None: nothing in this process does.
        counts: takes, by index, the failures and lapses of those claimed items that have any; None: nothing does.
    """
    check_function("payload", payload)

    def claim_of(position: int) -> Claim:
        each = objects[position]
        item = each if key is None else key(each)
        return Claim(item, item if payload is None else payload(each))

    return Claiming(holding, holdings, claim_of, counts={} if counts is None else counts)


def options_of_release(
    holding: Holding, delay: float, holdings: Holdings | None = None, *, failed: bool = False
) -> Releasing:
    """Return the options of a release; ``delay`` is in seconds.

    Raises:
        ValueError: the delay is not 0 to 604,800 seconds (7 days).
    """
    check_flag("failed", failed)
    return Releasing(holding, holdings, round(check_delay(delay) * 1000), failed)


def options_of_commit(holding: Holding, reason: str | None = None, holdings: Holdings | None = None) -> Committing:
    """Return the options of a commit, which rejects the items for a ``reason``; a note keeps a part of a long one."""
    if reason is None:
        return Committing(holding, holdings)
    check_text("reason", reason)
    return Committing(holding, holdings, reason.encode(errors="replace")[:MOST_REASON].decode(errors="ignore").encode())


def question(  # noqa: PLR0913, PLR0917 - likewise
    session: Session,
    method: Method[Any],
    objects: Sequence[Any],
    claim_options: ClaimOptions,
    retry: UriFilterError | None = None,
    key: Key = None,
) -> Batch:
    """Make the batch of a method about claims, whose errors have the method's answers; see ``items.batch_of``.

    Raises:
        ValueError: ``retry`` is the error of another call, or of another holder.
    """
    near = session.near if method.nearby else None
    batch = batch_of(session, method.command, objects, retry, key=key, near=near, claim_options=claim_options)
    if batch.claim_options is None or batch.claim_options.holdings is not claim_options.holdings:
        raise ValueError("retry= takes what this very object of claims raised")
    if batch.method != claim_options.method:
        raise ValueError(f"retry= takes what this very method raised, and not {batch.method}")
    if retry is not None and method.command == "claim" and not method.nearby:
        distrust(session, batch)
    if method.command == "commit" and retry is None:
        batch.near = session.near  # it takes in the answers, and gives none
    batch.items, batch.key, batch.term = objects, key, method.term
    return batch


def finish(
    session: Session, method: Method[R], items: Sequence[Any], claim_options: ClaimOptions, key: Key = None
) -> Flow[R]:
    """Commit or release items for no holder; return the method's result.

    Raises:
        BadItem: some items are bad; the error has their indices; nothing was done.
        UriFilterError: any other of the tree in ``errors``, with the method's answers that arrived.
    """
    batch = question(session, method, items, claim_options, key=key)
    return method.result((yield from resolve(session, batch)))


def leave(batch: Batch, known: Sequence[int | None], shards: int) -> None:
    """Have the next beats give back the items that an interrupted claim has, or may have, claimed.

    ``known`` has the answers that the caller had before; ``shards`` is the filter's number of shards.
    """
    holdings = None if batch.claim_options is None else batch.claim_options.holdings
    if holdings is None:
        return
    holdings.abandon()
    for call in batch.open:
        if call.call_id is not None:
            holdings.doubt(call.shard, split(call.packed), in_doubt=call.in_doubt)
    digests = batch.digests
    of_items = zip(shards_of(digests, shards), digests, batch.answers, known, strict=True)
    for position, (shard, digest, now, before) in enumerate(of_items):
        if now == 0 and before != 0:
            batch.answers[position] = IN_FLIGHT  # for a retry, which must not offer it a second time
            holdings.leave(shard, digest)
