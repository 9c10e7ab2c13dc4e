"""The snippets of the README and of the pages do what stands there."""

from __future__ import annotations

import re

import click
import pytest
from support.compiled import COMPILING
from support.pages import LANGUAGES, PAGES, ROOT, Session, blocks_of
from urifilter_redis.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(COMPILING)]

#: The page whose snippets are no slow test; tests/packaging follows the tutorial, too.
QUICK = ("README.md",)

COMMENTS = ("not run", "source", "needs", "in the background", "file", "run", "test command")


def name_of(page) -> str:
    return str(page.relative_to(ROOT))


def marked(page):
    return pytest.param(page, id=name_of(page), marks=[] if name_of(page) in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if any(block.is_run for block in blocks_of(page))])
def test_page(make_server, tmp_path, monkeypatch, page):
    """A reader who follows a page sees what it shows."""
    with Session(page, make_server().url, tmp_path, monkeypatch) as reader:
        for block in blocks_of(page):
            if block.is_run:
                try:
                    reader.run(block)
                except BaseException as error:
                    error.add_note(f"in {name_of(page)}, line {block.line}")
                    raise


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_says_why_not(page):
    """Each fenced block is run, compared or written to a file; if not, a comment before it has the reason."""
    wrong = []
    for block in blocks_of(page):
        kinds = {comment.partition(":")[0] for comment in block.comments}
        reason = block.comment("not run")
        if reason == "" or not kinds <= set(COMMENTS):
            wrong.append((block.line, "the comment before it has no reason, or is of no known kind"))
        elif reason is None and block.comment("file") is None and block.language not in {*LANGUAGES, "run"}:
            wrong.append((block.line, f"a block of {block.language or 'no language'} is not run: say why"))
    assert wrong == []


#: The commands that readers do not see, by page and first words, and why nobody needs to type them.
HIDDEN = {
    ("README.md", "venv/bin/urifilter dedupe"): "the command above, which the text has the reader run again",
    ("docs/install.md", "mkdir -p wheels elsewhere"): "the copy to the other machine, which the text asks for",
    ("docs/how-to/from-scrapy-redis.md", 'python -c "import hashlib, redis\nold = '): "the SETs that the reader has",
    ("docs/how-to/from-scrapy-redis.md", "mkdir job"): "the JOBDIR that the reader has",
}


def test_no_page_hides_a_command_that_a_reader_needs():
    """What is hidden has a reason, and no reason is left of what is shown by now."""
    reasons, unknown = set(HIDDEN), []
    for page in PAGES:
        for block in blocks_of(page):
            if block.language == "run":
                found = {each for each in HIDDEN if each[0] == name_of(page) and block.code.startswith(each[1])}
                reasons -= found
                unknown += [] if found else [(name_of(page), block.line)]
    assert (unknown, reasons) == ([], set())


#: What needs an extra, and the extra.
EXTRAS = {"urifilter serve": "server", "urifilter_redis.sdk": "sdk", "urifilter_redis.scrapy": "scrapy"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_reader_sees_what_to_do(page):
    """The text names the file to write, the terminal for what goes on, and the extra that a command needs."""
    text, wrong = page.read_text(), []
    for block in blocks_of(page):
        name = block.comment("file")
        if name is not None and f"`{name}`" not in block.lead:
            wrong.append((block.line, f"the text does not say that the block is {name}"))
        if "in the background" in block.comments and "terminal" not in block.lead:
            wrong.append((block.line, "the text does not say that the command goes on in a terminal of its own"))
        wrong += [
            (block.line, f"the page does not say that {what} needs the extra {extra}")
            for what, extra in EXTRAS.items()
            if block.is_run and what in block.code and not re.search(rf"\[[\w,]*\b{extra}\b", text)
        ]
    assert wrong == []


LIES = {
    "a value": "```python\n1 + 1  # 3\n```\n",
    "what is printed": "```python\nprint(2)  # 3\n```\n",
    "what is printed below": "```python\nprint(2)\n```\n\n```text\n3\n```\n",
    "an error": "```python\nint('1')  # raises ValueError\n```\n",
    "another error": "```python\nint('a')  # raises KeyError\n```\n",
    "an output": "```console\n$ echo 2\n3\n```\n",
    "a second output": "```console\n$ echo 2\n2\n$ echo 3\n```\n",
    "an exit code": "```sh\nfalse\ntrue\n```\n",
    "a file": "<!-- file: two -->\n```go\n2\n```\n\n```console\n$ cat two\n3\n```\n",
    "a setting": "```toml\nport = 80_000\n```\n",
    "JSON": "```json\n{port: 8000}\n```\n",
    "commands that readers do not see": "<!-- run: false -->\n",
}


@pytest.mark.parametrize("text", LIES.values(), ids=LIES)
def test_a_page_that_is_wrong_fails(tmp_path, monkeypatch, text):
    """Each kind of snippet is compared: a page that shows something else than comes out fails."""
    page = tmp_path / "page.md"
    page.write_text(text)
    with Session(page, "redis://127.0.0.1:1/0", tmp_path, monkeypatch) as reader:
        *before, last = blocks_of(page)
        for block in before:
            reader.run(block)
        with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
            reader.run(last)


def test_a_page_that_is_right_passes(tmp_path, monkeypatch):
    """The shell's folder and variables, Python's names, files and comments reach from block to block."""
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- file: of/two -->\n```go\n2\n```\n\n```sh\ncd of\nexport WORD=word\n```\n\n"
        "```console\n$ cat two; echo $WORD\n2\nword\n$ echo abc\na…\n```\n\n"
        "```python\nimport os\n\nword = os.environ['WORD']\nword  # 'word': it is there\nprint(word)\n"
        "open('three')  # raises FileNotFoundError\n```\n\n```text\nword\n```\n\n"
        "<!-- needs: no-such-program -->\n```sh\nno-such-program\n```\n"
    )
    with Session(page, "redis://127.0.0.1:1/0", tmp_path, monkeypatch) as reader:
        for block in blocks_of(page):
            reader.run(block)


def test_every_command_is_mentioned():
    """A reader finds every command in a page that says what it is for, not in the reference alone."""
    pages = "\n".join(page.read_text() for page in PAGES if not {"reference", "decisions"} & set(page.parts))
    assert [
        name
        for name in main.list_commands(click.Context(main))
        if not re.search(rf"`{name}\b|urifilter {name}\b", pages)
    ] == []
