"""The snippets of a page, run in order as one session of a reader: one server, one folder, one set of Python names.

The reader has installed as the README says, and has another server at ``REDIS`` as well. So commands and Python ask
the embedded server, unless the page names the other one where the reader sees it.

Comments of HTML, which readers do not see, tell more of a snippet:

- ``<!-- not run: REASON -->`` before a block: it is an excerpt, or needs something that tests do not have.
- ``<!-- needs: PROGRAM -->`` before a block: it is run where this program is installed.
- ``<!-- in the background -->`` before a block of ``sh``: its command goes on until the page ends.
- ``<!-- source: NAME -->`` before a block: it is a file of the tree.
- ``<!-- file: NAME -->`` before a block of any language: it is written to this file, for the commands below it.
- ``<!-- run: COMMANDS -->`` anywhere: commands that no reader needs; ``test_snippets.py`` has their reasons.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.compiled import COMPILING
from support.servers import PATIENCE, wait_until
from urifilter_redis import UriFilter
from urifilter_redis.sdk import FilterAPIClient
from urifilter_redis.service.settings import load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Languages of blocks that are run, or compared. A block of any other needs ``not run`` or ``file``.
LANGUAGES = ("python", "console", "shell-session", "sh", "text", "toml", "json")

#: The addresses that pages show, and that the session replaces by its own.
REDIS, SERVICE, FOLDER = "redis://localhost:6379/0", "http://localhost:8000", "/var/lib/urifilter"

_FENCE = re.compile(r"^ *```", re.MULTILINE)
_TOKEN = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*).*?\n(?P<code>.*?)^(?P=indent)```$|<!--\s*(?P<comment>.*?)\s*-->",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_LISTENS = re.compile(r"^listens at (http://\S+?:\d+)", re.MULTILINE)

#: The commands that install run in an environment that has everything.
INSTALLS = [
    (re.compile(r"\S*pip (install|wheel) [^&;\n]*"), "true"),
    (re.compile(r"python3 -m venv \S+"), "true"),
    (re.compile(r"(\.|source) venv/bin/activate"), "true"),
    (re.compile(r"\bvenv/bin/"), ""),
    (re.compile(r"--port 8000\b"), "--port 0"),
]

#: The beginnings of comments that give a value.
_VALUE = re.compile(r"True\b|False\b|None\b|-?\d|[\[({'\"<]|b'|[A-Z]\w*\(")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or commands that readers do not see (``run``).

    ``lead`` is the text that leads to the block, after the block before it.
    """

    line: int
    language: str
    code: str
    comments: tuple[str, ...] = ()
    lead: str = ""

    def comment(self, kind: str) -> str | None:
        """Return the text of the comment of a kind before the block."""
        for each in self.comments:
            name, _, text = each.partition(":")
            if name == kind:
                return text.strip()
        return None

    @property
    def is_run(self) -> bool:
        return self.comment("not run") is None


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in order; a page that cannot be read as such fails."""
    text = page.read_text()
    found: list[Block] = []
    comments: list[str] = []
    lead = ""
    fences = end = 0
    for match in _TOKEN.finditer(text):
        lead += text[end : match.start()]
        if text[end : match.start()].strip():
            comments = []
        end, line = match.end(), text.count("\n", 0, match.start()) + 1
        if match["comment"] is not None:
            kind, _, commands = match["comment"].partition(":")
            if kind == "run":
                found.append(Block(line, "run", commands.strip()))
            comments = [*comments, match["comment"]]
            continue
        fences += 2
        if not match["language"].startswith(("{", "mermaid")):  # the build of the site runs these
            found.append(Block(line, match["language"], textwrap.dedent(match["code"]), tuple(comments), lead))
        comments, lead = [], ""
    assert fences == len(_FENCE.findall(text)), f"{page.name}: a block begins or ends in a way that no test reads"
    return found


def is_said(value: str, comment: str) -> bool:
    """Whether a comment is a value, or begins with it; a word that ends with … stands for any text."""
    ends = [len(comment), *(found.start() for found in re.finditer(r"[:;,.]? |[:;,]", comment))]
    return any(matches(comment[:end], value) for end in ends)


def matches(expected: str, found: str) -> bool:
    return re.fullmatch(re.sub(r"\w*…", ".*", re.escape(expected)), found, re.DOTALL) is not None


class Session:
    """One reader who follows a page from its beginning."""

    def __init__(self, page: Path, redis_url: str, folder: Path, monkeypatch) -> None:
        self._page, self._folder, self._monkeypatch = page, folder, monkeypatch
        self._names: dict = {"__name__": "__main__", "print": self._print}
        self._replaced = {REDIS: redis_url, FOLDER: str(folder / "lib")}
        self._printed: list[str] = []
        self._last = ("", "")
        self._background: list[subprocess.Popen[bytes]] = []
        self._lines: list[str] = page.read_text().splitlines()
        work = folder / "work"
        work.mkdir()
        (work / "examples").symlink_to(ROOT / "examples")
        monkeypatch.chdir(work)
        monkeypatch.delenv("URIFILTER_REDIS_URL", raising=False)  # the README's installation has an embedded server
        monkeypatch.setenv("GOCACHE", os.environ.get("GOCACHE", str(Path.home() / ".cache" / "go-build")))
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("URIFILTER_DATA_DIR", str(folder / "data"))
        monkeypatch.setenv("URIFILTER_PORT", "0")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for value in self._names.values():
            if isinstance(value, UriFilter | FilterAPIClient):
                value.close()
        for process in self._background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def run(self, block: Block) -> None:
        """Run a block, and compare what it does with what the page says."""
        if (needed := block.comment("needs")) and shutil.which(needed) is None:
            return
        if name := block.comment("file"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(self._own(block.code))
        elif "in the background" in block.comments:
            self._start(block.code)
        else:
            runners = {"python": self._python, "text": self._text, "toml": self._toml, "json": json.loads}
            runners |= {"console": self._console, "shell-session": self._console, "sh": self._sh, "run": self._sh}
            runners[block.language](block if block.language == "python" else block.code)

    def _own(self, text: str) -> str:
        for shown, own in self._replaced.items():
            text = text.replace(shown, own)
        return text

    def _print(self, *values, sep: str = " ", **_) -> None:
        """Compare a printed line with the comment behind it; without one it is kept for the next block of text."""
        printed = sep.join(map(str, values))
        line = self._lines[sys._getframe(1).f_lineno - 1]
        _, is_commented, comment = line.rpartition("  # ")
        if is_commented:
            assert is_said(printed, self._own(comment)), (line, printed)
        else:
            self._printed.append(printed + "\n")

    def _python(self, block: Block) -> None:
        self._printed = []
        tree = ast.increment_lineno(ast.parse(self._own(block.code)), block.line)
        for statement in tree.body:
            line = self._lines[statement.end_lineno - 1]
            _, _, comment = line.rpartition("  # ")
            comment = self._own(comment) if comment != line else ""
            if comment.startswith("raises "):
                with pytest.raises(Exception, match=".*") as raised:
                    self._execute(statement)
                assert is_said(raised.type.__name__, comment.removeprefix("raises ")), (line, raised.type)
            elif isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), self._page.name, "eval"), self._names)
                is_printed = isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) == "print"
                assert is_printed or not _VALUE.match(comment) or is_said(repr(value), comment), (line, value)
            else:
                self._execute(statement)
        self._last = ("".join(self._printed), "")

    def _execute(self, statement: ast.stmt) -> None:
        exec(compile(ast.Module([statement], []), self._page.name, "exec"), self._names)

    def _shell(self, commands: str) -> subprocess.CompletedProcess[str]:
        """Run commands in a shell that begins where the one before ended: its folder and variables."""
        for pattern, replacement in INSTALLS:
            commands = pattern.sub(replacement, commands)
        state = self._folder / "state"
        script = f"trap 'pwd >{state}.pwd; env -0 >{state}.env' EXIT\n{self._own(commands)}\n"
        done = subprocess.run(
            ["bash", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMPILING
        )
        kept = dict(each.split("=", 1) for each in Path(f"{state}.env").read_text().split("\0") if each)
        for name in {*os.environ, *kept} - {"_", "SHLVL", "PWD", "OLDPWD"}:
            if name not in kept:
                self._monkeypatch.delenv(name)
            elif kept[name] != os.environ.get(name):
                self._monkeypatch.setenv(name, kept[name])
        self._monkeypatch.chdir(Path(f"{state}.pwd").read_text().removesuffix("\n"))
        self._last = (done.stdout, done.stderr)
        return done

    def _sh(self, commands: str) -> None:
        done = self._shell(f"set -e\n{commands}")
        assert done.returncode == 0, (commands, done.stderr)

    def _console(self, code: str) -> None:
        found = _COMMAND.findall(code)
        assert found
        assert code == "".join(f"$ {command}\n{expected}" for command, expected in found)
        for command, expected in found:
            done = self._shell(command)
            shown = {done.stdout, done.stdout + done.stderr, done.stderr + done.stdout}
            wanted = self._own(expected).rstrip("\n")  # a block ends without the blank line of redis-cli's errors
            assert any(matches(wanted, each.rstrip("\n")) for each in shown), (command, *self._last)

    def _text(self, expected: str) -> None:
        """Compare with the output of the last block of Python or ``sh``, or of the last command."""
        out, err = self._last
        assert any(matches(self._own(expected), each) for each in (out, err, out + err, err + out)), (
            expected,
            out,
            err,
        )

    def _toml(self, code: str) -> None:
        """Load the service's settings: nothing else is in this language."""
        file = self._folder / "settings.toml"
        file.write_text(self._own(code))
        with self._monkeypatch.context() as alone:
            for name in [name for name in os.environ if name.startswith("URIFILTER_")]:
                alone.delenv(name)  # it would beat the file
            load({}, file)

    def _start(self, command: str) -> None:
        """Start a command that goes on; a service is asked once it listens."""
        for pattern, replacement in INSTALLS:
            command = pattern.sub(replacement, command)
        log = self._folder / f"log{len(self._background)}"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-c", self._own(command)], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True,
            )  # fmt: skip
        self._background.append(process)
        if "urifilter serve" in command:

            def listens() -> re.Match[str] | None:
                assert process.poll() is None, log.read_text()
                return _LISTENS.search(log.read_text())

            self._replaced[SERVICE] = wait_until(listens, "the service does not listen")[1]
