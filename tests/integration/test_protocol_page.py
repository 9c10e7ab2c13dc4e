"""``docs/reference/protocol.md`` describes the scripts as they are."""

from __future__ import annotations

import re
from pathlib import Path

from urifilter_redis.protocol import scripts
from urifilter_redis.protocol.call_ids import CALL_LIFE, PROOF_LIFE
from urifilter_redis.protocol.calls import ITEMS_A_CALL, SLICES_AND_ITEMS
from urifilter_redis.protocol.claims import BYTES_A_CALL, CLAIMS_A_CALL, MOST_DELAY, MOST_LEASE, RECLAIMED_A_CALL
from urifilter_redis.protocol.scripts import Header

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text()
ABOUT_ITEMS = ("insert", "contains", "forget", "remove")
OF_CLAIMS = ("claim", "commit", "release", "reclaim", "beat")


def test_every_error_word_is_described():
    """The table has the words with which the scripts about items refuse, and no other."""
    of_layouts = {each: ("counting", "redisbloom") if each != "remove" else ("counting",) for each in ABOUT_ITEMS}
    made = [scripts.load(name, layout) for name, layouts in of_layouts.items() for layout in layouts]
    made += [scripts.load(name, "counting") for name in OF_CLAIMS]
    used = {word for script in made for word in Header.of(script).errors}
    table = PAGE.split("## Errors\n")[1].split("\nThe text of STALE")[0]
    assert set(re.findall(r"^\| `([A-Z]+)` \|", table, re.MULTILINE)) == used


def test_keys_and_arguments():
    """The tables name them as the headers of the scripts do."""
    keys = dict(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (meta, .*) \|$", PAGE, re.MULTILINE))
    arguments = re.findall(r"^\| (\d)[ …]* \| ([\w ]+) \|", PAGE, re.MULTILINE)
    for name in ABOUT_ITEMS:
        header = Header.of(scripts.load(name, "counting"))
        (said,) = (text for names, text in keys.items() if f"`{name}`" in names)
        assert said == ", ".join(part.name for part in header.keys[:-1]) + ", then the live slices, oldest first"
        assert [part.name for part in header.args] == [argument for _, argument in arguments]


def test_keys_and_arguments_of_claims():
    """Their tables name them as the headers of the scripts do; claim's texts are told below the table."""
    _, keys, arguments, *_ = PAGE.split("| script of claims |")
    for name in OF_CLAIMS:
        header = Header.of(scripts.load(name, *(["counting"] if scripts.COMMANDS[name] else [])))
        (said,) = re.findall(rf"^\|.*`{name}`.* \| (.*) \|$", keys, re.MULTILINE)
        parts = [part.name if part.name != "slices" else "then the live slices, oldest first" for part in header.keys]
        assert said == ", ".join(parts)
        (said,) = re.findall(rf"^\| `{name}` \| (.*) \|$", arguments, re.MULTILINE)
        assert said == ", ".join(part.name for part in header.args)


def test_limits_of_claims():
    """They are those of the library."""
    assert f"at most {CLAIMS_A_CALL} items, and {BYTES_A_CALL // 1024} KiB of texts" in PAGE
    assert f"limit is 1 to {RECLAIMED_A_CALL}." in PAGE
    assert (MOST_LEASE, MOST_DELAY) == (3600, 7 * 86400)
    assert "a lease is at most an hour, a delay at most seven days" in PAGE


def test_numbers():
    """Limits and times are those of the library."""
    assert f"A call has 1 to {ITEMS_A_CALL} digests" in PAGE
    assert f"at most {SLICES_AND_ITEMS} / n digests" in PAGE
    assert f"B + {CALL_LIFE:,} ≤ T < B + {PROOF_LIFE:,}" in PAGE
