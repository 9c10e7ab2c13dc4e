"""sort -u, and comm with the sorted lines that were seen."""

from __future__ import annotations

from bench.peers.programs import Program


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
