"""Ctrl-C while the command line is still being imported: the process ends by it, as programs do, without a traceback.

Imported before anything that takes a while; ``cli/main.py`` ends it. In any other program it does nothing.
"""

from __future__ import annotations

import pathlib
import signal
import sys
import threading

_MODULES = {"urifilter_redis.cli", "urifilter_redis.cli.__main__"}


def _is_the_command() -> bool:
    script = pathlib.Path(sys.argv[0] if sys.argv else "").name
    return script == "urifilter" or (script == "-m" and not _MODULES.isdisjoint(sys.orig_argv))


def started() -> None:
    """Let Ctrl-C be an exception again."""
    global _begun  # noqa: PLW0603 - of the process, as its signals are
    if _begun:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _begun = False


_begun = (
    _is_the_command()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _begun:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
