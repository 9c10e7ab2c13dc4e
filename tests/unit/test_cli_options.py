"""The options that all commands share: where they may stand, and what beats what."""

from __future__ import annotations

import inspect
import itertools
import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from urifilter_redis.cli import main
from urifilter_redis.cli.common import Group, Shared, pass_shared, print_json, shared
from urifilter_redis.cli.main import _COMMANDS

import urifilter_redis

#: By option: its variable, a value for each place, and how each is kept; a flag has no value.
SHARED = {
    "redis": ("URIFILTER_REDIS_URL", ["redis://1", "redis://2", "redis://3"], ["redis://1", "redis://2", "redis://3"]),
    "prefix": ("URIFILTER_PREFIX", ["one", "two", "three"], ["one", "two", "three"]),
    "archive": ("URIFILTER_ARCHIVE", ["file:///1", "file:///2", "file:///3"], ["file:///1", "file:///2", "file:///3"]),
    "timeout": (None, ["1s", "2m", "3h"], [1.0, 120.0, 10_800.0]),
    "wait": (None, ["1s", "2m", "3h"], [1.0, 120.0, 10_800.0]),
    "json": (None, [None, None, None], [True, True, True]),
    "verbose": (None, [None, None, None], [True, True, True]),
}
VARIABLES = {"redis": "redis://variable", "prefix": "variable", "archive": "file:///variable"}
VALUED = [name for name in SHARED if SHARED[name][1][0] is not None]
PLACES = [each for each in itertools.product([False, True], repeat=3) if any(each)]


@click.group(cls=Group)
@shared
def top():
    """As ``urifilter``."""


@top.group()
@shared
def middle():
    """As ``archive``."""


@middle.command()
@shared
@pass_shared
def show(options):
    """Print what was kept."""
    print_json({name: getattr(options, name) for name in SHARED} | {"said": sorted(options.said)})


def ask(words, **env):
    """Run ``show``; the shared options' variables are those in ``env`` and no others."""
    known = dict.fromkeys(variable for variable, _, _ in SHARED.values() if variable)
    return CliRunner(env=known | env).invoke(top, words)


def words(name, places, values):
    """Return a command line that says an option in some of the three places."""
    said = [
        [f"--{name}" if value is None else f"--{name}={value}"] if place else []
        for place, value in zip(places, values, strict=True)
    ]
    return [*said[0], "middle", *said[1], "show", *said[2]]


def test_all_shared_options_are_tested_here():
    """Each option of ``urifilter`` itself, and the variable of each that has one."""
    options = {each.name: each for each in main.params if each.name != "version"}
    assert set(options) == set(SHARED)
    for name, (variable, _, _) in SHARED.items():
        assert options[name].envvar == variable or variable in options[name].help


@pytest.mark.parametrize("places", PLACES, ids=lambda places: "".join("x" if place else "-" for place in places))
@pytest.mark.parametrize("name", SHARED)
def test_what_is_said_beats_the_environment(name, places):
    """Before, between or after the commands' names; said several times, the last one counts."""
    variable, values, kept = SHARED[name]
    env = {variable: VARIABLES[name]} if variable else {}
    found = json.loads(ask(words(name, places, values), **env).stdout)
    last = max(index for index, place in enumerate(places) if place)
    assert (found[name], found["said"]) == (kept[last], [name])


@pytest.mark.parametrize("name", ["redis", "prefix"])
def test_what_the_environment_says(name):
    """It counts where nothing is said, and is nothing that was said; an empty variable is none at all."""
    nothing = ["middle", "show"]
    found = json.loads(ask(nothing, **{SHARED[name][0]: VARIABLES[name]}).stdout)
    assert (found[name], found["said"]) == (VARIABLES[name], [])
    found = json.loads(ask(nothing, **{SHARED[name][0]: ""}).stdout)
    assert found[name] == getattr(Shared(), name)


@pytest.mark.parametrize("empty", [0, 1, 2])
@pytest.mark.parametrize("name", VALUED)
def test_empty_option(name, empty):
    """Refused in each place, though the environment or another place says a value: which server did it mean?"""
    variable, values, _ = SHARED[name]
    env = {variable: VARIABLES[name]} if variable else {}
    some = [*values[:empty], "", *values[empty + 1 :]]
    for places in ([index == empty for index in range(3)], [True] * 3):
        done = ask(words(name, places, some), **env)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"Invalid value for '--{name}'" in done.stderr
        assert "it is empty: say a value, or leave the option out" in done.stderr


@pytest.mark.parametrize("places", [(True, False, False), (False, True, False), (False, False, True)])
def test_impossible_wait(places):
    """Exit 2 and a message, wherever it stands."""
    done = ask(words("wait", places, ["soon"] * 3))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'soon'" in done.stderr


@pytest.mark.parametrize(
    "command", [("plan", "--capacity"), ("create", "x", "--capacity"), ("import", "x", "--expect")]
)
def test_infinite_number_of_items(command):
    """A number that is too large for a float is refused with a message."""
    result = CliRunner().invoke(main, [*command, "1e400"])
    assert result.exit_code == 2
    assert "'1e400' is no number of items" in result.stderr


@pytest.mark.parametrize("name", sorted(main.commands))
def test_help_of_a_command(name):
    """The list of commands says of each the first sentence of its help."""
    command = main.commands[name]
    assert command.name == name
    sentence = inspect.cleandoc(command.help).split("\n\n")[0].replace("\n", " ").split(". ")[0]
    assert _COMMANDS[name][1] == f"{sentence.rstrip('.')}."


def test_help_and_library_load_little():
    """``--help`` loads no command and not redis-py; nor does the library, until a client is asked for."""
    script = """
import contextlib, sys
import urifilter_redis
assert "redis" not in sys.modules
assert urifilter_redis.errors.FilterFull is urifilter_redis.FilterFull
sys.argv = ["urifilter", "--help"]
from urifilter_redis.cli import main
with contextlib.suppress(SystemExit):
    main()
assert "redis" not in sys.modules
urifilter_redis.UriFilter
assert "redis" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_public_names():
    """Each public name can be imported, and ``dir`` has it; any other is an AttributeError."""
    for name in urifilter_redis.__all__:
        assert getattr(urifilter_redis, name) is not None
        assert name in dir(urifilter_redis)
    with pytest.raises(AttributeError, match="module 'urifilter_redis' has no attribute 'nothing'"):
        urifilter_redis.nothing  # noqa: B018 - asked for on purpose
