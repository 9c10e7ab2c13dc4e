"""The parts that autodoc and sphinx-click leave out: tables made from the code, and help texts as plain text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
from docutils import nodes
from sphinx.domains.python import PyObject
from sphinx.util.docutils import SphinxDirective
from tables import TABLES
from urifilter_redis.cli import main

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: Code in a help text: between backticks, or an option.
_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--[a-z][\w-]*)")

#: What begins markup in reStructuredText, in which sphinx-click takes the help texts to be.
_MARKUP = re.compile(r"([*`|\\]|_(?!\w)|:(?=//))")

#: The options of all commands, which the page shows once.
_OF_ALL = {param.opts[-1] for param in main.params}


class FromCode(SphinxDirective):
    """Put a table in the place of the directive; its argument is the table's name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the parsed table."""
        parsed = self.parse_text_to_nodes(TABLES[self.arguments[0]](), allow_section_headings=True)
        for table in (table for node in parsed for table in node.findall(nodes.table)):
            table["classes"] += ["from-code", self.arguments[0]]
        return parsed


def _marked_up(text: str) -> str:
    """Return a line of a help text as reStructuredText."""
    parts: list[str] = []
    end = 0
    for code in _CODE.finditer(text):
        parts += [_MARKUP.sub(r"\\\1", text[end : code.start()]), f"``{code[1] or code[2]}``"]
        end = code.end()
    return "".join([*parts, _MARKUP.sub(r"\\\1", text[end:])])


def _describe(_: Sphinx, __: click.Context, lines: list[str]) -> None:
    """Show the text of a command; the lines of its example are code."""
    shown: list[str] = []
    for line in lines:
        if line.startswith("|   "):
            shown += [] if shown[-1].startswith("   ") else ["", ".. code-block:: sh", ""]
            shown.append(line.removeprefix("| ").rstrip() if len(line) > len("| ") else "")
        else:
            shown.append(_marked_up(line.removeprefix("| ")))
    lines[:] = shown


def _show_options(_: Sphinx, __: click.Context, lines: list[str]) -> None:
    """Show the texts of options as they are."""
    lines[:] = [line if line.startswith((".. ", "    :")) else _marked_up(line) for line in lines]


def _hide_options_of_all(group: click.Group) -> None:
    """Have the options of all commands be shown once, of the whole group."""
    for command in group.commands.values():
        for param in command.params:
            if isinstance(param, click.Option) and param.opts[-1] in _OF_ALL:
                param.hidden, param.envvar = True, None
        if isinstance(command, click.Group):
            _hide_options_of_all(command)


def _sign(_: Sphinx, kind: str, name: str, *rest: Any) -> tuple[str | None, str | None]:
    """Name the class of timeouts in full, because the library and the SDK have one each.

    Classes whose objects a caller only gets are shown without the arguments of their constructors.
    """
    signature, answer = rest[-2:]
    if kind == "class" and name.count(".") == 1 and not name.endswith((".FilterSettings", ".Timeouts")):
        return "", answer
    package = "urifilter_redis.sdk" if name.startswith("urifilter_redis.sdk.") else "urifilter_redis"
    return signature and re.sub(r"(?<![\w.])Timeouts\b", f"{package}.Timeouts", signature), answer


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive, and listen to autodoc and sphinx-click."""
    app.add_directive("from-code", FromCode)
    app.connect("autodoc-process-signature", _sign)
    app.connect("sphinx-click-process-description", _describe)
    app.connect("sphinx-click-process-options", _show_options)
    _hide_options_of_all(main)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # as the docstrings call them
    return {"parallel_read_safe": True}
