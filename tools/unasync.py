"""Make the blocking twin of each awaited source: ``python tools/unasync.py``; with ``--check``, only compare them.

A twin is its source with the substitutions below, in their order. What differs by nature stands in modules by hand,
which the substituted import lines name. The lines of a twin stand as those of its source, and are not formatted.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "urifilter_redis"

#: The twin of each source, below the package.
TWINS = {"aio.py": "client.py", "claiming/awaited.py": "claiming/blocking.py", "sdk/aio.py": "sdk/client.py"}

#: Text within brackets, which may have brackets of their own.
INNER = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"

#: A regular expression, and the text that takes its place.
SUBSTITUTIONS = (
    # the language
    (r"\[(\w+) async for \1 in (.+)\]", r"list(\2)"),
    (r"\basync (?=def|for|with)", ""),
    (rf"\(await ({INNER})\)(?=[.\[])", r"\1"),
    (r"\bawait ", ""),
    (r"__a(?=enter__|exit__)", "__"),
    (  # between two lines Ctrl-C would lose the item that the first has taken
        r"^( +)for item, _ in left:\n +yield item$",
        r"\1yield from (each for each, _ in left)",
    ),
    # event loops and coalescing
    (r"^ +self\._connector\.check_loop\(\)\n", ""),
    (r"^ +coalesce: .*\n(?: {16}.*\n)*", ""),
    (r", coalesce=coalesce", ""),
    (r"^ +``insert`` and ``contains`` of many tasks (?:.+\n)+\n", ""),
    # names
    (r"\bOpening, |\bAsyncItera(?:ble|tor), | \| AsyncIterable\[T\]", ""),
    (r"\bOpening\[Self\]", "Self"),
    (r"\bAsyncBase", "BlockingBase"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bbase_async\b", "base_blocking"),
    (r"\bdrive_async\b", "drive"),
    (r"\bclaiming\.awaited\b", "claiming.blocking"),
    (r"\bredis\.asyncio as redis_asyncio\b", "redis as redis_py"),
    (r"\bredis_asyncio\b", "redis_py"),
    (r"\bredis\.asyncio\.", "redis."),
    # prose
    (r"\bAn asyncio client\b", "A blocking client"),
    (r"\basyncio client\b", "blocking client"),
    (r", for asyncio\.", "."),
    (r", which may be asynchronous\.", "."),
    (r"\b(A|The) task (?=beats|survives)", r"\1 thread "),
    (r"\bTasks (?:of one event loop )?may share\b", "Threads may share"),
    (
        r"away, and ends with its client or event loop\b",
        "away, ends with its client, and never keeps an\n    interpreter from ending",
    ),
    (r"\bEach event loop and each forked child\b", "Each forked child"),
    (r"\bof this event loop\b", "of this process"),
    (r"\binterrupted or cancelled call\b", "interrupted call"),
)


def twin_of(source: str, text: str, used: set[str]) -> str:
    """Return the text of a source's twin; note in ``used`` the expressions that matched."""
    for pattern, replacement in SUBSTITUTIONS:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if count:
            used.add(pattern)
    return f"# Generated from {source} by tools/unasync.py; edit that file.\n{text}"


def main() -> str | None:
    """Make the twins; return what is wrong."""
    used: set[str] = set()
    made = {
        PACKAGE / twin: twin_of(source, (PACKAGE / source).read_text("utf-8"), used) for source, twin in TWINS.items()
    }
    if idle := [pattern for pattern, _ in SUBSTITUTIONS if pattern not in used]:
        return f"these expressions match nothing: {idle}"
    stale = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    if sys.argv[1:] == ["--check"]:
        names = ", ".join(str(path.relative_to(PACKAGE.parent)) for path in stale)
        return f"not what their sources make: {names}; run python tools/unasync.py" if stale else None
    for path in stale:
        path.write_text(made[path], "utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
