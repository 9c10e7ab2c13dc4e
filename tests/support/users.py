"""A user of a server, who loses and regains rights."""

from __future__ import annotations

import contextlib


class User:
    """The user "crawler", who may do everything at first, also while connected; a context manager."""

    def __init__(self, server) -> None:
        self.admin = server.client()
        self.url = f"redis://crawler:pw@127.0.0.1:{server.port}/0"
        self.grant()

    def grant(self) -> None:
        self.admin.acl_setuser("crawler", enabled=True, reset=True, passwords="+pw", commands=["+@all"], keys=["*"])

    def forbid(self, *commands: str) -> None:
        self.admin.execute_command("ACL", "SETUSER", "crawler", *(f"-{command.lower()}" for command in commands))

    @contextlib.contextmanager
    def without(self, command: str):
        self.forbid(command)
        yield
        self.grant()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.admin.acl_deluser("crawler")
        self.admin.close()
