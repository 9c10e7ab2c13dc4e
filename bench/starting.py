"""The time until a program can begin: importing the library beside redis-py, and ``--help`` beside an empty command.

``python bench/starting.py``: processor time of whole processes, ms, the fastest of many runs in turn; read the ratios.
"""

from __future__ import annotations

import resource
import subprocess
import sys

#: Runs of each program.
RUNS = 25

EMPTY = "import click; click.group()(lambda: None)(['--help'])"
HELP = "from urifilter_redis.cli import main; main(['--help'])"
PROGRAMS = {
    "python": "",
    "import redis": "import redis",
    "import urifilter_redis": "import urifilter_redis",
    "from urifilter_redis import UriFilter": "from urifilter_redis import UriFilter",
    "an empty click program --help": EMPTY,
    "urifilter --help": HELP,
}
BASES = ("import redis",) * 4 + ("an empty click program --help",) * 2


def processor_time(program: str) -> float:
    """Return the seconds of processor time that a Python process takes for a program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Time all programs in turn, and print a table."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(RUNS):
        for name, program in PROGRAMS.items():
            times[name].append(processor_time(program))
    best = {name: min(found) for name, found in times.items()}
    for name, base in zip(PROGRAMS, BASES, strict=True):
        print(f"{name:40} {1000 * best[name]:6.0f} ms  {best[name] / best[base]:5.2f} x {base}")


if __name__ == "__main__":
    main()
