"""The service behind nginx, configured as the page about deployment says."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.forwarder import Authority
from support.pages import ROOT, blocks_of
from support.servers import free_port, wait_until
from support.service import Service

from urifilter_redis import UriFilter
from urifilter_redis.sdk import FilterAPIClient, FilterAPIError

#: Where programs for the administrator alone are.
_PLACES = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])

_AROUND = """
pid {folder}/pid;
error_log {folder}/error.log;
daemon off;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {shown}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, service: int, authority: Authority):
    """Run nginx with the page's configuration; yield the service's address behind it."""
    program = shutil.which("nginx", path=_PLACES)
    if program is None:
        pytest.skip("nginx is missing: apt-get install nginx-light")
    (block,) = (each for each in blocks_of(ROOT / "docs" / "deployment.md") if each.language == "nginx")
    port, shown = free_port(), block.code
    for said, own in (
        ("server 127.0.0.1:8000;", f"server 127.0.0.1:{service};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/seen.example.com.pem", f"{folder}/cert.pem"),
        ("/etc/ssl/private/seen.example.com.key", f"{folder}/cert.key"),
    ):
        assert said in shown
        shown = shown.replace(said, own)
    (folder / "nginx.conf").write_text(_AROUND.format(folder=folder, shown=shown))
    process = subprocess.Popen([program, "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"])
    try:
        wait_until((folder / "pid").exists, "nginx does not start")
        yield f"https://localhost:{port}/seen"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_behind_nginx(redis70, tmp_path):
    """Clients reach it below the prefix over TLS, a repeat gets its answer, and a body that is too large is refused."""
    token = "urifilter_0123456789012345678901234567890123456789012"
    authority = Authority(tmp_path)
    settings = _with_token(token)
    with UriFilter.create("news", redis=redis70.url, capacity=1000):
        service = Service(redis70.url, settings=settings)
        try:
            with (
                nginx(tmp_path, service.port, authority) as address,
                FilterAPIClient(address, access_token=token, verify=str(authority.file)) as api,
            ):
                assert api.unique("news", ["a", "b", "a"]) == ["a", "b"]
                assert api.unique("news", ["a", "c"]) == ["c"]
                with pytest.raises(FilterAPIError) as raised:
                    api.unique("news", ["x" * 5_000_000])
                assert raised.value.error_code in {"item_too_long", "bad_response"}
        finally:
            service.stop()


def _with_token(token: str) -> str:
    import hashlib

    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[tokens]]\nname = "all"\ndigest = "sha256:{digest}"\nfilters = ["*"]\naccess = "write"\n'
