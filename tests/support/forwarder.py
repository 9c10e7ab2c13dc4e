"""A plain way to the service: a TLS server in front of it with a certificate of a throwaway CA, or a proxy."""

from __future__ import annotations

import contextlib
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


class Authority:
    """A CA of nobody else's: ``file`` has its certificate, ``context`` a server's with one of it."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is missing: apt-get install openssl")
        self.file = folder / "ca.pem"
        _openssl("-subj", "/CN=a private CA", "-out", self.file, "-keyout", folder / "ca.key")
        paths = ("-out", folder / "cert.pem", "-keyout", folder / "cert.key")
        extensions = ("-addext", _NAMES, "-addext", "basicConstraints=critical,CA:FALSE")
        _openssl("-subj", "/CN=localhost", *paths, "-CA", self.file, "-CAkey", folder / "ca.key", *extensions)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "cert.pem", folder / "cert.key")

    def trusting(self) -> ssl.SSLContext:
        """Return the context of a client that trusts it alone."""
        return ssl.create_default_context(cafile=str(self.file))


def _openssl(*arguments: object) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


class Forwarder:
    """Passes all bytes on to a loopback port, over TLS if there is a context; a context manager.

    ``loses`` is how many of the first connections end when their first reply has come, which is lost.
    """

    def __init__(self, to: int, context: ssl.SSLContext | None = None, *, loses: int = 0) -> None:
        self.count = self.lost = 0

        class Handler(socketserver.BaseRequestHandler):
            def handle(handler) -> None:  # noqa: N805
                self.count += 1
                with contextlib.suppress(OSError):
                    side = context.wrap_socket(handler.request, server_side=True) if context else handler.request
                    with side, socket.create_connection(("127.0.0.1", to)) as other:
                        if self.lost < loses:
                            threading.Thread(target=_pump, args=(side, other), daemon=True).start()
                            self.lost += bool(other.recv(1 << 16))
                            side.shutdown(socket.SHUT_RDWR)
                            return
                        back = threading.Thread(target=_pump, args=(other, side))
                        back.start()
                        _pump(side, other)
                        back.join()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http{'s' if context else ''}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
