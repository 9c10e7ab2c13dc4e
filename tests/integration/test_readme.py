"""The README stays short, harmless, and made of sections that stand alone."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest
from support.pages import ROOT, Session, blocks_of, is_said
from support.servers import PATIENCE

PAGE = ROOT / "README.md"


def test_it_is_short():
    """A newcomer reads all of it."""
    assert len(PAGE.read_text().splitlines()) <= 150


def test_nothing_empties_a_server():
    """No page shows a command that empties a server: a reader may paste it where it hurts."""
    pages = [PAGE, *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"flush(all|db)", page.read_text(), re.IGNORECASE)] == []


def test_a_block_of_a_file_is_that_file():
    """But for the sentence above its first blank line, which tells readers of the file alone what it is."""
    for block in blocks_of(PAGE):
        if name := block.comment("source"):
            assert (ROOT / name).read_text().partition("\n\n")[2] == block.code
            break
    else:
        pytest.fail("README shows no file")


def test_the_block_can_be_pasted(any_server):
    """Into Python's own prompt, by a terminal that brackets what is pasted if Python asks for that."""
    (block,) = (block for block in blocks_of(PAGE) if block.comment("source"))
    said = re.findall(r"^ *print\(.*  # (.*)$", block.code, re.MULTILINE)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "URIFILTER_REDIS_URL": any_server.url, "PYTHONSTARTUP": "", "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-q"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as python:
        os.close(theirs)
        shown = _until(ours, ">>> ")
        pasted = block.code if "\033[?2004h" not in shown else f"\033[200~{block.code}\033[201~\n"
        os.write(ours, pasted.encode() + b"print('the', 'end')\n")
        shown = _until(ours, "\nthe end")
        os.write(ours, b"exit()\n")
        with contextlib.suppress(OSError):  # the terminal is gone with its last process
            while os.read(ours, 4096):
                pass
        python.wait(PATIENCE)
    os.close(ours)
    assert "Error" not in shown
    printed = [line for line in _plain(shown).splitlines() if _PRINTED.match(line)]
    assert len(printed) == len(said)
    assert all(map(is_said, printed, said)), shown


#: A line that is a value, and no echo of what was pasted.
_PRINTED = re.compile(r"(True|False|\[.*\])$")


def _until(terminal: int, text: str) -> str:
    """Read from a terminal until it has shown a text."""
    shown = ""
    while text not in _plain(shown):
        shown += os.read(terminal, 4096).decode()
    return shown


def _plain(shown: str) -> str:
    """What a terminal shows, without colours and moves of the cursor."""
    return re.sub(r"\r|\033(\[[?0-9;]*[a-zA-Z]|[=>])", "", shown)


@pytest.mark.slow
def test_sections_in_another_order(make_server, tmp_path, monkeypatch):
    """Each section runs without those before it."""
    heads = [number for number, line in enumerate(PAGE.read_text().splitlines(), 1) if line.startswith(("# ", "## "))]
    sections = {head: [] for head in heads}
    for block in blocks_of(PAGE):
        if block.is_run:
            sections[max(head for head in heads if head <= block.line)].append(block)
    with Session(PAGE, make_server().url, tmp_path, monkeypatch) as reader:
        for head in reversed(heads):
            for block in sections[head]:
                reader.run(block)
