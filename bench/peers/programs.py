"""Programs of the command line: files of lines instead of a filter."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from bench.peers import FILES, Peer
from bench.servers import Missing
from bench.usage import run

#: Lines are bytes: with a locale, sort would compare them by its rules, and take several times as long.
ENVIRONMENT = os.environ | {"LC_ALL": "C"}


#: The lines of the first file were seen; of the second one those are printed that were not, each once.
NEW = "FILENAME == ARGV[1] { seen[$0]; next } !($0 in seen) { seen[$0]; print }"


class Program(Peer):
    """A file of the lines that were seen, and a program that tells which lines of another file are new."""

    batches = FILES
    fill = 250_000  # each run reads all lines that were seen

    #: The programs that it needs.
    programs: tuple[str, ...] = ()

    def open(self, capacity: int, error_rate: float, server: str) -> None:  # noqa: ARG002 - exact, and without a server
        """Make the folder of the files, with no line seen."""
        for program in self.programs:
            if shutil.which(program) is None:
                raise Missing(f"{program} is missing")
        self._folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="uf-")))
        self.path("seen").touch()

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self._folder / name

    def version(self) -> str:
        """Return what its first program says of itself."""
        for option in ("--version", "-Wversion"):
            said = subprocess.run([self.programs[0], option], capture_output=True, text=True, check=False)
            if said.returncode == 0 and said.stdout:
                return said.stdout.splitlines()[0]
        return self.programs[0]

    def run(self, command: Sequence[str], given: str, taken: str) -> None:
        """Run a program on a file."""
        run(command, self.path(given), self.path(taken), ENVIRONMENT)

    @abstractmethod
    def find(self) -> None:
        """Write the lines of ``batch`` that are not in ``seen``, each once, to ``new``."""

    @abstractmethod
    def keep(self) -> None:
        """Bring the lines of ``new`` into ``seen``."""

    def insert(self, batch: Sequence[str]) -> int:
        """Return the number of new lines, and keep them."""
        self.path("batch").write_text("".join(f"{item}\n" for item in batch))
        self.find()
        self.keep()
        return self.path("new").read_bytes().count(b"\n")

    def seen(self, batch: Sequence[str]) -> int:
        """Return the number of lines that are not new; of equal ones each counts."""
        self.path("batch").write_text("".join(f"{item}\n" for item in batch))
        self.find()
        new = {*self.path("new").read_text().splitlines()}
        return sum(item not in new for item in batch)

    def memory(self) -> int | None:
        """Return the bytes of the lines that were seen, which are in a file; the program reads them in each run."""
        return self.path("seen").stat().st_size


class Awk(Program):
    """awk reads the lines that were seen, then the batch."""

    name = "awk"
    compared_as = "awk with the lines seen so far in its memory, a run a batch, which reads and writes files; exact"
    programs = ("awk",)

    def find(self) -> None:
        """Print the new lines."""
        self.run(["awk", NEW, str(self.path("seen")), str(self.path("batch"))], "batch", "new")

    def keep(self) -> None:
        """Append the new lines."""
        with self.path("seen").open("ab") as seen:
            seen.write(self.path("new").read_bytes())


class Sort(Program):
    """sort -u of the batch, comm with the lines that were seen, and a merge."""

    name = "sort -u"
    compared_as = "sort -u of a batch, comm with the lines seen so far, sort -m of both; files; exact"
    programs = ("sort", "comm")

    def find(self) -> None:
        """Print the new lines, sorted."""
        self.run(["sort", "-u"], "batch", "sorted")
        self.run(["comm", "-13", str(self.path("seen")), "-"], "sorted", "new")

    def keep(self) -> None:
        """Merge the new lines in."""
        self.run(["sort", "-m", "-o", str(self.path("seen")), str(self.path("seen")), "-"], "new", "said")
