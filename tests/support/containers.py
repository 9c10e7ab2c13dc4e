"""The image and the services of ``compose.yaml``, read from their files; and a program that runs as in a container."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from support.pages import ROOT

#: A variable that must be set: ``${NAME:?message}``.
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]+\}")


@dataclass
class Stage:
    """A stage of a Dockerfile: its base, and its instructions in order, each with its text."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """Return the texts of all instructions of a name."""
        return [text for each, text in self.instructions if each == name]

    def one(self, name: str) -> str:
        """Return the text of the only instruction of a name."""
        (text,) = self.all(name)
        return text

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it sets."""
        return dict(pair.split("=", 1) for text in self.all("ENV") for pair in shlex.split(text))

    @property
    def health_check(self) -> list[str]:
        """The command that tells whether the service is well."""
        return json.loads(self.one("HEALTHCHECK").partition(" CMD ")[2])


def dockerfile() -> list[Stage]:
    """Return the stages of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stages: list[Stage] = []
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            stages.append(Stage(rest.partition(" ")[0]))
        elif name:
            stages[-1].instructions.append((name, rest))
    return stages


def compose() -> dict:
    """Return ``compose.yaml``."""
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def in_context(path: str) -> bool:
    """Whether ``.dockerignore`` lets a file of the checkout into the image's build; the last pattern counts."""
    found = True
    parts = Path(path).parts
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if not line or line.startswith("#"):
            continue
        if pattern.startswith("**/"):
            matches = any(fnmatch.fnmatch(part, pattern.removeprefix("**/")) for part in parts)
        else:
            matches = fnmatch.fnmatch(parts[0], pattern)
        found = line.startswith("!") if matches else found
    return found


def copy_context(folder: Path) -> None:
    """Copy what the first stage of the image copies, as far as ``.dockerignore`` lets it in."""
    for text in dockerfile()[0].all("COPY"):
        *sources, target = text.split()
        for source in sources:
            there = ROOT / source
            for file in [there] if there.is_file() else [each for each in there.rglob("*") if each.is_file()]:
                name = file.relative_to(ROOT)
                if in_context(str(name)):
                    to = folder / target / (file.relative_to(there) if there.is_dir() else name)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, to)


#: Runs the arguments behind the first, a temporary folder, and the volumes, up to ``--``: the file system can only be
#: read but for these, and there are no capabilities.
_CONTAINED = """
set -e
mount --make-rprivate /
temporary=$1; shift
mount -t tmpfs tmpfs "$temporary"
while [ "$1" != -- ]; do mount --bind "$1" "$1"; shift; done
shift
mount -o remount,bind,ro /
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@"
"""


def contained(command: list[str], temporary: Path, volumes: list[Path]) -> list[str]:
    """Return the command that runs another as a container with a read-only root and no capabilities does."""
    namespace = ["unshare", "--mount", "--propagation", "unchanged"]
    missing = not all(map(shutil.which, ("mount", "setpriv", "unshare")))
    if missing or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace: run the test as root, with mount, and unshare and setpriv of util-linux")
    return [*namespace, "bash", "-c", _CONTAINED, "-", str(temporary), *map(str, volumes), "--", *command]
