"""A client of the HTTP service: by the SDK, and by requests under keys, which the next process repeats after a kill."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from pathlib import Path
from typing import Any

import httpx

from bench.hostile.actors.part import PATIENCE, TIMEOUTS, Part, answers_of
from bench.hostile.filters import uri
from bench.hostile.journal import Asked, calls_of, lines_of
from urifilter_redis.sdk import FilterAPIClient, FilterAPIError

#: The filters that the service is asked about: those that keep their uid, because it tells none.
ASKED = ("pages", "days", "rate")

#: Seconds after which a request is not repeated under its key: the records are kept for longer.
VALID = 400.0

#: The share of calls that the SDK makes.
BY_SDK = 0.5


def by_key(part: Part, client: httpx.Client, call: str, name: str, numbers: list[int]) -> None:
    """Insert by a request under the key ``call``, as often as it takes."""
    began, body = time.monotonic(), {"items": [uri(each) for each in numbers]}
    answers: list[Any] = [None] * len(numbers)
    while time.monotonic() < began + PATIENCE:
        with contextlib.suppress(httpx.HTTPError):
            response = client.post(f"/v1/filters/{name}/insert", json=body, headers={"Idempotency-Key": call})
            if response.is_success:
                answers = response.json()["ages"]
                break
        time.sleep(0.2)
    part.log.told(call, answers)


def by_sdk(part: Part, client: FilterAPIClient, name: str, numbers: list[int]) -> None:
    """Insert by the SDK."""
    call = part.log.ask("insert", name, "", numbers, served=True)
    items, began, error = [uri(each) for each in numbers], time.monotonic(), None
    while True:
        try:
            answers = client.insert_ages(name, items, retry=error)
            break
        except FilterAPIError as failed:
            error = failed if failed.answers is not None else error
            if time.monotonic() > began + PATIENCE:
                answers = [None] * len(items) if error is None else answers_of(error, len(items))
                break
            time.sleep(0.2)
    part.log.told(call, answers)


def left_of(part: Part) -> list[Asked]:
    """Return the requests under keys that this process's predecessors began and got no answer to."""
    lines = [line for path in part.before for line in lines_of(Path(path))]
    since = time.monotonic() - VALID
    return [
        call
        for call in calls_of(lines).values()
        if call.more.get("keyed") and call.ended == math.inf and call.began > since
    ]


def run(part: Part) -> None:
    """Repeat what was left, and then ask about new items."""
    token, sequence = secrets.token_hex(8), 0
    with (
        httpx.Client(base_url=part.service, timeout=5.0) as plain,
        FilterAPIClient(part.service, timeouts=TIMEOUTS) as sdk,
    ):
        for left in left_of(part):
            part.log.ask("insert", left.filter, "", left.items, call=left.call, keyed=True, served=True)
            by_key(part, plain, left.call, left.filter, left.items)
        for _ in part.steps():
            name, numbers = part.dice.choice(ASKED), part.some()
            if part.dice.random() < BY_SDK:
                by_sdk(part, sdk, name, numbers)
                continue
            sequence += 1
            call = part.log.ask("insert", name, "", numbers, call=f"{token}/0/{sequence}", keyed=True, served=True)
            by_key(part, plain, call, name, numbers)
