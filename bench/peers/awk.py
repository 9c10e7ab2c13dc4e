"""awk, with all lines in its memory."""

from __future__ import annotations

from bench.peers.programs import Program

#: The lines of the first file were seen; of the second one those are printed that were not, each once.
NEW = "FILENAME == ARGV[1] { seen[$0]; next } !($0 in seen) { seen[$0]; print }"


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
