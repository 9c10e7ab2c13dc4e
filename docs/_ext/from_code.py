"""What autodoc and sphinx-click leave out: tables made from the code, and help texts as the plain text that they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sphinx.util.docutils import SphinxDirective
from tables import TABLES

from urifilter_redis.cli import main

if TYPE_CHECKING:
    import click
    from docutils import nodes
    from sphinx.application import Sphinx

__all__ = ["setup"]

#: What begins markup in reStructuredText, in which sphinx-click takes the help texts to be.
_MARKUP = re.compile(r"([*`|\\]|_\b)")

#: The options of all commands, which the page shows once.
_OF_ALL = {param.opts[-1] for param in main.params}

#: Their variables.
_VARIABLES = {param.envvar for param in main.params if param.envvar}


class FromCode(SphinxDirective):
    """Put a table in the place of the directive; its argument is the table's name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the parsed table."""
        return self.parse_text_to_nodes(TABLES[self.arguments[0]](), allow_section_headings=True)


def _describe(_: Sphinx, __: click.Context, lines: list[str]) -> None:
    """Show the text of a command; the lines of its example are code."""
    shown: list[str] = []
    for line in lines:
        if line.startswith("|   "):
            shown += [] if shown[-1].startswith("   ") else ["", ".. code-block:: sh", ""]
            shown.append(line.removeprefix("| ").rstrip() if len(line) > len("| ") else "")
        else:
            shown.append(_MARKUP.sub(r"\\\1", line.removeprefix("| ")))
    lines[:] = shown


def _show_options(_: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Show the options of a command without those of all commands."""
    shown, is_shown = [], True
    for line in lines:
        if line.startswith(".. option:: "):
            names = re.findall(r"--?[\w-]+", line.partition("<")[0])
            is_shown = context.parent is None or not _OF_ALL & set(names)
        escaped = line if line.startswith((".. ", "    :")) else _MARKUP.sub(r"\\\1", line)
        shown += [escaped] if is_shown else []
    lines[:] = shown


def _show_variables(_: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Show the variables of a command without those of all commands."""
    if context.parent is not None and not {param.envvar for param in context.command.params} - {None} - _VARIABLES:
        lines.clear()


def _qualify(_: Sphinx, __: str, name: str, *rest: Any) -> tuple[str | None, str | None]:
    """Name the class of the SDK's timeouts in full, because the library has one of the same name."""
    signature, answer = rest[-2:]
    if name.startswith("urifilter_redis.sdk.") and signature:
        signature = re.sub(r"(?<![\w.])Timeouts\b", "urifilter_redis.sdk.Timeouts", signature)
    return signature, answer


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive, and listen to autodoc and sphinx-click."""
    app.add_directive("from-code", FromCode)
    app.connect("autodoc-process-signature", _qualify)
    app.connect("sphinx-click-process-description", _describe)
    app.connect("sphinx-click-process-options", _show_options)
    app.connect("sphinx-click-process-envvars", _show_variables)
    return {"parallel_read_safe": True}
