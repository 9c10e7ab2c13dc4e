"""Work in a forked child."""

from __future__ import annotations

import os
import pickle


def in_child(work):
    """Run ``work`` in a forked child; return its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:  # whatever it is, the parent shows it
            answer = repr(error)
        os.write(writing, pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    return answer
