"""A checkout runs as it is: from its root, from elsewhere, installed in any way, and from what git or a zip gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Makes the model of a layout and composes a script: both need ``lua/``, and the command line ``cli/``.
USE = """
import urifilter_redis, urifilter_redis.cli, urifilter_redis.protocol.scripts as scripts
assert scripts.load("insert", "blocked", 12).source.startswith("-- insert: ")
print(urifilter_redis.__file__)
"""


#: Install it alone, whatever the tests' own environment has.
ALONE = ("--no-deps", "--no-build-isolation", "--ignore-installed")


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONSAFEPATH"}}


def python(program, *arguments, cwd) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=cwd, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The tree's files, as a zip of it has them, with something stale in ``build/``."""
    tree = tmp_path_factory.mktemp("tree") / "urifilter-redis-main"
    skipped = shutil.ignore_patterns(
        ".git", "__pycache__", ".*_cache", ".hypothesis", "venv", "build", "dist", "*.egg-info"
    )
    shutil.copytree(ROOT, tree, ignore=skipped)
    stale = tree / "build" / "lib" / "urifilter_redis" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    return tree


@pytest.fixture(scope="module")
def built(checkout):
    """The wheel and the sdist, built of it without the network."""
    pytest.importorskip("hatchling", reason="hatchling is missing: pip install hatchling")
    for target in ("wheel", "sdist"):
        python(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", checkout.parent / "dist", cwd=checkout)
    return {path.suffix: path for path in (checkout.parent / "dist").iterdir()}


def environment_of(folder: Path) -> Path:
    """Make a virtual environment that has the tests' packages, but for this one; return its Python."""
    venv.create(folder, with_pip=False)
    program = folder / "bin" / "python"
    site = Path(python(program, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=folder))
    packages = next(path for path in map(Path, sys.path) if (path / "click").is_dir())
    (site / "shared.pth").write_text(f"{packages}\n")
    return program


@pytest.mark.slow
def test_from_its_root(checkout):
    """``python -c`` and ``python -m`` in the root take the tree, whatever is installed."""
    program = environment_of(checkout.parent / "plain")
    assert python(program, "-c", USE, cwd=checkout) == str(checkout / "urifilter_redis" / "__init__.py")
    assert "create" in python(program, "-m", "urifilter_redis.cli", "--help", cwd=checkout)


@pytest.mark.slow
def test_from_elsewhere_on_the_path(checkout, tmp_path):
    """So does PYTHONPATH."""
    code = f"import sys; sys.path.insert(0, {str(checkout)!r})\n{USE}"
    program = environment_of(tmp_path / "venv")
    assert python(program, "-c", code, cwd=tmp_path) == str(checkout / "urifilter_redis" / "__init__.py")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".whl", pytest.param(".gz", marks=pytest.mark.slow)])
def test_installed(built, checkout, tmp_path, suffix):
    """A wheel, and a wheel of the sdist, have all inside, and nothing stale."""
    program = environment_of(tmp_path / "venv")
    install = [sys.executable, "-m", "pip", "--python", program, "install", "-q", *ALONE]
    python(*install, built[suffix], cwd=tmp_path)
    found = python(program, "-c", USE, cwd=tmp_path)
    assert found.startswith(str(tmp_path))
    assert not Path(found).with_name("stale.py").exists()
    assert Path(found).with_name("lua").is_dir()
    assert python(program, "-c", USE, cwd=checkout) == str(checkout / "urifilter_redis" / "__init__.py")


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    """The files of a wheel, their bytes and their rights do not depend on where it was built."""
    with tarfile.open(built[".gz"]) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    python(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=source)
    again = zipfile.ZipFile(tmp_path / built[".whl"].name)
    wheel = zipfile.ZipFile(built[".whl"])
    assert [(each.filename, each.CRC, each.external_attr) for each in again.infolist()] == [
        (each.filename, each.CRC, each.external_attr) for each in wheel.infolist()
    ]


@pytest.mark.slow
def test_editable(built, checkout, tmp_path):
    """An editable installation runs from anywhere, and an edit counts at once."""
    program = environment_of(tmp_path / "venv")
    install = [sys.executable, "-m", "pip", "--python", program, "install", "-q", *ALONE]
    python(*install, "-e", checkout, cwd=tmp_path)
    assert python(program, "-c", USE, cwd=tmp_path) == str(checkout / "urifilter_redis" / "__init__.py")


@pytest.mark.slow
def test_the_tests_say_which_tree_they_test():
    """``pytest`` tests the tree that it stands in, and names it."""
    import urifilter_redis

    assert Path(urifilter_redis.__file__).parent == ROOT / "urifilter_redis"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/unit/test_tokens.py"]
    plain = os.environ | {"PYTEST_ADDOPTS": ""}  # which may ask to measure coverage, and that would be begun anew
    done = subprocess.run([*command, "-v"], capture_output=True, text=True, cwd=ROOT, env=plain)
    assert f"urifilter_redis: {ROOT / 'urifilter_redis'}" in done.stdout
