"""A client of the server on which single scripts run."""

from __future__ import annotations

import pytest


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client
