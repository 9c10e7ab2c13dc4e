"""The programs of the page about other languages get their answers, also after a reply is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import socketserver
import subprocess
import threading

import pytest
from support.forwarder import _pump
from support.pages import ROOT, blocks_of
from support.service import Service

from urifilter_redis import UriFilter

PAGE = ROOT / "docs" / "how-to" / "other-languages.md"

#: The file of each program, with the command that runs it.
PROGRAMS = {"unique.mjs": ("node",), "unique.go": ("go", "run"), "Unique.java": ("java",)}


class Losing:
    """Passes bytes on to a loopback port, but for the replies of its first connection; a context manager."""

    def __init__(self, to: int) -> None:
        self.lost = 0

        class Handler(socketserver.BaseRequestHandler):
            def handle(handler) -> None:  # noqa: N805
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", to)) as service:
                    threading.Thread(target=_pump, args=(handler.request, service), daemon=True).start()
                    if self.lost == 0:
                        self.lost = len(service.recv(1 << 16))
                        handler.request.shutdown(socket.SHUT_RDWR)
                    else:
                        _pump(service, handler.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_lost_reply_is_asked_for_again(redis70, tmp_path, name):
    """The service inserts, its reply is lost, and the program still gets "new"."""
    (code,) = (block.code for block in blocks_of(PAGE) if block.comment("file") == name)
    command = PROGRAMS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is missing: install it to run this program")
    (tmp_path / name).write_text(code)
    with UriFilter.create("news", redis=redis70.url, capacity=1000) as news:
        service = Service(redis70.url)
        try:
            with Losing(service.port) as way:
                environment = os.environ | {"URIFILTER_API_URL": way.url, "GOCACHE": str(tmp_path / "go")}
                done = subprocess.run(
                    [*command, name, "https://example.com/a"],
                    cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
                )  # fmt: skip
                assert way.lost > 0
        finally:
            service.stop()
        assert "https://example.com/a" in done.stdout, done.stderr
        assert "https://example.com/a" in news
