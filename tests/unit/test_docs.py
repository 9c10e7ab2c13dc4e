"""The pages name what is there: files, functions, tests, messages; and the tables of URLs are true.

The build of the site checks the links of its own pages.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from urifilter_redis import errors
from urifilter_redis.bloom.normalize import NORMALIZATIONS, normalizer
from urifilter_redis.bloom.url_parts import INDEX_PAGES
from urifilter_redis.http_api import ERROR_CODES

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "node" / "README.md",
]
#: The pages that the site does not have.
OUTSIDE = [ROOT / "README.md", ROOT / "examples" / "node" / "README.md"]
TOPS = ("bench", "cli", "docs", "examples", "lua", "tests", "tools", "urifilter_redis")

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(rf"((?:{'|'.join(TOPS)})/[\w/.-]*|\w+\.(?:md|toml))")
_PLACE = re.compile(r"([\w/.-]+\.(?:py|lua)):([\w.]+)")


def without_blocks(text: str) -> str:
    """A page without its blocks of code, in which brackets and # mean something else."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as hosting sites make them."""
    headings = re.findall(r"^#{1,6} (.+)$", without_blocks(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


def named(page: Path, form: re.Pattern[str]) -> list[tuple[str, ...]]:
    """What a page names in code of this form."""
    found = (form.fullmatch(code) for code in _CODE.findall(without_blocks(page.read_text())))
    return [match.groups() for match in found if match]


def python_names(path: Path) -> set[str]:
    """The functions and classes of a module, and the methods as ``Class.method``."""
    names: set[str] = set()
    for each in ast.parse(path.read_text()).body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(each.name)
        if isinstance(each, ast.ClassDef):
            inner = (one for one in each.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{each.name}.{one.name}" for one in inner}
    return names


def lua_names(path: Path) -> set[str]:
    """The functions of a Lua file."""
    return set(re.findall(r"^(?:local )?function (\w+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    """Each relative link leads to a file, and its fragment to a heading there."""
    wrong = []
    for link in _LINK.findall(without_blocks(page.read_text())):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not re.match(r"[a-z]+:", link) and not (target.is_file() and (not fragment or fragment in anchors(target))):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_exists(page):
    """Each file or folder of the project that a page names in code is there, or is one that the reader writes."""
    written = re.findall(r"^<!-- file: (\S+) -->$", page.read_text(), re.MULTILINE)
    assert [path for (path,) in named(page, _PATH) if not (ROOT / path).exists() and path not in written] == []


def test_every_function_of_the_walks_exists():
    """Each ``file:function`` is a function, class or method of that file."""
    places = named(ROOT / "CONTRIBUTING.md", _PLACE)
    wrong = []
    for path, name in places:
        there = ROOT / path
        names = (python_names if there.suffix == ".py" else lua_names)(there) if there.is_file() else set()
        if name not in names:
            wrong.append(f"{path}:{name}")
    assert wrong == []
    assert len(places) > 20


def test_every_test_that_is_named_exists():
    """Each test that a page names with its file is there."""
    found = [
        named_test
        for page in PAGES
        for named_test in re.findall(r"`(test_\w+)`\s+in\s+`(tests/[\w/]+\.py)`", without_blocks(page.read_text()))
    ]
    assert [(name, path) for name, path in found if name not in python_names(ROOT / path)] == []
    assert len(found) >= 6


def test_tokens_are_kept_for_their_user_alone():
    """Each command that writes a token to a file does so in the user's own folder, and with a mode of 600."""
    found = [line for page in PAGES for line in page.read_text().splitlines() if "token new" in line and " 2> " in line]
    wrong = [line for line in found if "(umask 077; " not in line or " 2> ~/.config/urifilter/" not in line]
    assert wrong == []
    assert len(found) >= 4


def test_the_glossary_is_alphabetical():
    """Terms stand in alphabetical order, each once."""
    terms = re.findall(r"^## (.+)$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert terms == sorted(set(terms), key=str.lower)


def test_every_decision_is_listed():
    """The list of decisions has each page under its own title."""
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    wanted = [f"- [{page.read_text().splitlines()[0].removeprefix('# ')}]({page.name})" for page in pages]
    assert [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("- ")] == wanted


def test_the_index_of_tasks_is_that_of_the_sidebar():
    """The groups, their pages and the order are the same, and each page has one title."""
    folder, root = ROOT / "docs" / "how-to", (ROOT / "docs" / "index.md").read_text()
    index: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for group in re.split(r"^## ", (folder / "index.md").read_text(), flags=re.MULTILINE)[1:]:
        found = re.findall(r"\| \[([^\]]+)\]\(([\w-]+)\.md\) \|$", group, re.MULTILINE)
        index[group.splitlines()[0]] = [page for _, page in found]
        titles |= {page: title for title, page in found}
    sidebar = re.findall(r"^:caption: 'How to: ([^']+)'\n(.*?)^```", root, re.MULTILINE | re.DOTALL)
    listed = {
        name.capitalize(): re.findall(r"^how-to/(?!index)([\w-]+)$", pages, re.MULTILINE) for name, pages in sidebar
    }
    assert list(index.items()) == list(listed.items())
    pages = {each.stem: each.read_text().splitlines()[0] for each in folder.glob("*.md") if each.stem != "index"}
    assert {page: f"# {title}" for page, title in titles.items()} == pages


# docs/troubleshooting.md names messages, errors and metrics as the code has them

TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text()

#: The messages in the first column of the tables; error codes and names of classes are no messages.
MESSAGES = [
    message for message in re.findall(r"^\| `([^`]+)` \|", TROUBLES, re.MULTILINE) if " " in message or "…" in message
]


def texts_of(path: Path) -> list[str]:
    """Return the texts of a module; that of an f-string in its parts."""
    return [
        each.value
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


@pytest.fixture(scope="module")
def texts():
    """All texts of the code, one a line."""
    modules = [path for folder in ("urifilter_redis", "cli") for path in (ROOT / folder).rglob("*.py")]
    lua = [path.read_text() for path in (ROOT / "lua").glob("*.lua")]
    return "\n".join([*(text for path in modules for text in texts_of(path)), *lua])


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_those_of_the_code(texts, message):
    """Each part of a quoted message, between its …, is in a text of the code."""
    parts = [part.strip() for part in message.split("…")]
    assert [part for part in parts if part.strip(":;,. ") and part not in texts] == []


def test_enough_messages_are_quoted():
    """The tables are read, and not passed over."""
    assert len(MESSAGES) > 60


def test_every_error_is_there():
    """Each class of errors, and each error code of the service, has its remedy."""
    assert [name for name in errors.__all__ if f"`{name}`" not in TROUBLES] == []
    assert [code for code in ERROR_CODES if f"`{code}`" not in TROUBLES] == []


# the tables of docs/how-to/count-pages.md are true

COUNTING = (ROOT / "docs" / "how-to" / "count-pages.md").read_text()

loose = normalizer("loose")


def pairs(heading: str) -> list[tuple[str, str]]:
    """The first two codes of each row of the section's table."""
    section = COUNTING.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [tuple(re.findall(r"`([^`]+)`", row)) for row in rows]


def test_the_urls_that_are_one():
    """Each row is one item under ``loose``; the last five under ``sorted``, and the last under ``whatwg``."""
    rows = pairs("The URLs that are one page")
    assert [loose(one) == loose(other) for one, other in rows] == [True] * len(rows)
    for name, least in (("sorted", 5), ("whatwg", 1)):
        same = [normalizer(name)(one) == normalizer(name)(other) for one, other in rows]
        assert same[-least:] == [True] * least
        assert same[-least - 1] is False
    section = COUNTING.split("The index pages are ")[1].split(", in\n")[0]
    assert set(re.findall(r"`([^`]+)`", section)) == INDEX_PAGES


def test_the_urls_that_stay_two():
    """Each row is two items."""
    rows = [row[:2] for row in pairs("The URLs that stay two")]
    assert [loose(one) != loose(other) for one, other in rows] == [True] * len(rows)


def test_beside_other_programs():
    """Each row is one item under the normalisation that it names and those after it, and under none before."""
    section = COUNTING.split("## Beside other programs\n")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    for row in rows:
        one, other, least = (cell.strip("` ") for cell in row.split(" | ")[:3])
        one = one.removeprefix("| `")
        first = NORMALIZATIONS.index(least) if least in NORMALIZATIONS[1:] else len(NORMALIZATIONS)
        same = [normalizer(name)(one) == normalizer(name)(other) for name in NORMALIZATIONS[1:]]
        assert same == [at >= first for at in range(1, len(NORMALIZATIONS))], row
    assert len(rows) == 33


def test_the_pages_that_are_merged_wrongly():
    """Each row is one item; every normalisation is listed."""
    rows = pairs("The pages that `loose` merges wrongly")
    assert [loose(one) == loose(other) for one, other in (row for row in rows if len(row) == 2)] == [True] * 5
    assert tuple(row[0] for row in rows if len(row) == 1 and row[0] in NORMALIZATIONS) == NORMALIZATIONS
