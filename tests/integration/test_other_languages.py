"""The programs of the page about other languages get their answers, also after a reply is lost."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading

import pytest
from support.compiled import COMPILING
from support.forwarder import Forwarder
from support.pages import ROOT, blocks_of
from support.service import Service

from urifilter_redis import UriFilter
from urifilter_redis.protocol.scripts import vectors

pytestmark = pytest.mark.timeout(COMPILING)

PAGE = ROOT / "docs" / "how-to" / "other-languages.md"

#: The file of each program, with the command that runs it.
PROGRAMS = {"unique.mjs": ("node",), "unique.go": ("go", "run"), "Unique.java": ("java",)}

SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


def program(name, folder, address, *arguments) -> subprocess.CompletedProcess[str]:
    """Run a program of the page against a service, to its end."""
    (code,) = (block.code for block in blocks_of(PAGE) if block.comment("file") == name)
    command = PROGRAMS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is missing: install it to run this program")
    (folder / name).write_text(code)
    environment = os.environ | {"URIFILTER_API_URL": address}
    return subprocess.run(
        [*command, name, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=COMPILING
    )


class NotFound(http.server.BaseHTTPRequestHandler):
    """Answers as a proxy that knows no such path: 404, with a page for people."""

    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        page = b"<html><body>no such page</body></html>"
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", [each if each == "unique.mjs" else SLOW(each) for each in PROGRAMS])
def test_a_page_in_html_ends_the_program(tmp_path, name):
    """A status that is final is not asked for again, also if the body is no JSON; the message has both."""
    asked = type("Handler", (NotFound,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), asked) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            done = program(name, tmp_path, f"http://127.0.0.1:{server.server_port}", "https://example.com/a")
        finally:
            server.shutdown()
            thread.join()
    assert (done.returncode, asked.asked) == (1, 1)
    assert "404 <html>" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_lost_reply_is_asked_for_again(any_server, tmp_path, name):
    """The service inserts, its reply is lost, and the program still gets "new"."""
    with UriFilter.create("news", redis=any_server.url, capacity=1000) as news:
        with Service(any_server.url) as service, Forwarder(service.port, loses=1) as way:
            done = program(name, tmp_path, f"http://127.0.0.1:{way.port}", "https://example.com/a")
            assert way.lost > 0
        told = '"new":[true]' if name == "Unique.java" else "https://example.com/a"  # which prints the answer as it is
        assert told in done.stdout, done.stderr
        assert "https://example.com/a" in news


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_rules(any_server, tmp_path, name):
    """A filter with rules answers the program as the known spellings say: each is new once."""
    known = [
        each for each in json.loads(vectors())["ruled"] if "keep" in each["rules"] and each["normalize"] == "loose"
    ]
    rules, spellings = known[0]["rules"], known[0]["spellings"]
    asked = [text for each in spellings for text in (each["item"], each["spelling"])]
    seen: set[str] = set()
    new = [each["spelling"] not in seen and not seen.add(each["spelling"]) for each in spellings for _ in range(2)]
    made = {"capacity": 1000, "normalize": "loose", "rules": rules}
    with UriFilter.create("news", redis=any_server.url, **made), Service(any_server.url) as service:
        done = program(name, tmp_path, service.url, *asked)
    assert done.returncode == 0, done.stderr
    told = [uri for uri, is_new in zip(asked, new, strict=True) if is_new]
    printed = {
        "unique.mjs": lambda: re.findall(r"'([^']*)'", done.stdout),  # an array, as console.log writes it
        "unique.go": lambda: done.stdout.strip().removeprefix("[").removesuffix("]").split(" "),  # a slice
        "Unique.java": lambda: json.loads(done.stdout)["new"],  # the answer as it is
    }
    expected = {"Unique.java": new, "unique.go": " ".join(told).split(" ")}
    assert printed[name]() == expected.get(name, told)
    assert 1 < sum(new) < len(spellings) + 1
