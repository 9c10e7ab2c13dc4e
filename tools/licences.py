"""Write the table of ``docs/reference/licences.md``: ``python tools/licences.py``.

It reads the metadata of the packages in its own environment, which needs urifilter-redis with the extra ``all``.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageMetadata, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "licences.md"
HEAD = "| with | package | licence |"

EXTRAS = ("", "daemon", "embedded", "scrapy", "sdk", "server")

#: What classifiers and old metadata say, as SPDX has it.
SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "PSFL": "PSF-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def brought(name: str, extra: str, found: set[str]) -> set[str]:
    """Add the packages that a package needs with an extra, and those that these need, here."""
    for line in requires(name) or ():
        needed = Requirement(line)
        with_extra = not needed.marker or needed.marker.evaluate({"extra": extra})
        if with_extra and (not extra or re.search(r"\bextra\b", str(needed.marker))):
            key = canonicalize_name(needed.name)
            if key not in found:
                found.add(key)
                brought(key, "", found)
            for each in needed.extras:
                brought(key, each, found)
    return found


def licence(told: PackageMetadata) -> str:
    """Return the licence that a package's metadata has."""
    classified = [each.rpartition(" :: ")[2] for each in told.get_all("Classifier", ()) if each.startswith("License")]
    short = [each for each in (told.get("License-Expression"), told.get("License")) if each and "\n" not in each]
    found = next(each for each in [*short, *classified, "?"] if each not in {"OSI Approved", "UNKNOWN"})
    return SPDX.get(found, found)


def table() -> str:
    """Return the table: each package once, under the first of the extras that brings it."""
    rows, seen = [], {"urifilter-redis"}
    for extra in EXTRAS:
        for name in sorted(brought("urifilter-redis", extra, set()) - seen):
            seen.add(name)
            told = metadata(name)
            rows.append(f"| {f'`{extra}`' if extra else 'always'} | {told['Name']} | {licence(told)} |")
    return "\n".join([HEAD, "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    PAGE.write_text(f"{PAGE.read_text().partition(HEAD)[0]}{table()}\n")
