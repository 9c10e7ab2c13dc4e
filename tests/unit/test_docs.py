"""The pages name what is there: files, functions, tests. The build of the site checks the links of its own pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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
