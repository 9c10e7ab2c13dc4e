"""The README stays short, harmless, and made of sections that stand alone."""

from __future__ import annotations

import re

import pytest
from support.pages import ROOT, Session, blocks_of

PAGE = ROOT / "README.md"


def test_it_is_short():
    """A newcomer reads all of it."""
    assert len(PAGE.read_text().splitlines()) <= 150


def test_nothing_empties_a_server():
    """No page shows a command that empties a server: a reader may paste it where it hurts."""
    pages = [PAGE, *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"flush(all|db)", page.read_text(), re.IGNORECASE)] == []


@pytest.mark.slow
def test_sections_in_another_order(make_server, tmp_path, monkeypatch):
    """Each section runs without those before it."""
    heads = [number for number, line in enumerate(PAGE.read_text().splitlines(), 1) if line.startswith("## ")]
    sections = {head: [] for head in heads}
    for block in blocks_of(PAGE):
        if block.is_run:
            sections[max(head for head in heads if head <= block.line)].append(block)
    with Session(PAGE, make_server().url, tmp_path, monkeypatch) as reader:
        for head in reversed(heads):
            for block in sections[head]:
                reader.run(block)
