"""Something that is no Redis, and answers whatever it is asked."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress


@contextmanager
def answering(reply):
    """Listen at a loopback port, and give it; send ``reply(asked)`` for all that is received."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client, suppress(ConnectionError):
                    while asked := client.recv(65_536):
                        client.sendall(reply(asked))

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
