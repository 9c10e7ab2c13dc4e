"""``urifilter lua export``: files that a program in another language needs, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import resource

import pytest
from support import cli

from urifilter_redis.protocol.scripts import exported_files

pytestmark = pytest.mark.slow

FILES = exported_files()


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_export(admin, tmp_path):
    """A folder that is made for it has all files; the server knows each script by the SHA1 of the index."""
    folder = tmp_path / "new" / "scripts"
    out, err = cli.run("lua", "export", folder)
    scripts = sum(name.endswith(".lua") for name in FILES)
    assert (out, err) == (b"", f"wrote {scripts} scripts, vectors.json, scripts.json into {folder}\n")
    assert content(folder) == FILES
    index = json.loads((folder / "scripts.json").read_text())["scripts"]
    for each in index.values():
        assert admin.script_load((folder / each["file"]).read_bytes()) == each["sha1"]
    out, _ = cli.run("lua", "export", folder, "--json")
    assert json.loads(out) == {"folder": str(folder), "files": list(FILES)}


def test_again(tmp_path):
    """An earlier export is overwritten, one of another release too; files of others stay."""
    cli.run("lua", "export", tmp_path)
    older = json.loads((tmp_path / "scripts.json").read_text())
    older["scripts"]["drop"]["sha1"] = hashlib.sha1(b"old").hexdigest()
    (tmp_path / "scripts.json").write_text(json.dumps(older))
    (tmp_path / "drop.lua").write_bytes(b"old")
    (tmp_path / "client.js").write_bytes(b"mine")
    cli.run("lua", "export", tmp_path)
    assert content(tmp_path) == FILES | {"client.js": b"mine"}


@pytest.mark.parametrize("indexed", [False, True], ids=["no export", "an earlier export"])
@pytest.mark.parametrize("name", ["insert-classic.lua", "vectors.json", "scripts.json"])
def test_files_of_others(tmp_path, name, indexed):
    """They are not overwritten, and nothing else is written; --force does."""
    if indexed:
        cli.run("lua", "export", tmp_path)
    (tmp_path / name).write_bytes(b"mine")
    before = content(tmp_path)
    _, err = cli.run("lua", "export", tmp_path, code=2)
    assert f"{tmp_path} has files of others: " in err
    assert name in err
    assert "--force" in err
    assert content(tmp_path) == before
    cli.run("lua", "export", tmp_path, "--force")
    assert content(tmp_path) == FILES


def test_a_file_in_the_place_of_the_folder(tmp_path):
    """The message says so; the file stays."""
    (tmp_path / "file").write_bytes(b"mine")
    _, err = cli.run("lua", "export", tmp_path / "file", code=2)
    assert err == f"urifilter: {tmp_path / 'file'} is a file: name a folder\n"
    _, err = cli.run("lua", "export", tmp_path / "file" / "scripts", code=2)
    assert err == f"urifilter: {tmp_path / 'file' / 'scripts'}: nothing was written: Not a directory\n"
    assert content(tmp_path) == {"file": b"mine"}


def test_a_folder_in_the_place_of_a_file(tmp_path):
    """It is not overwritten, with --force neither."""
    (tmp_path / "vectors.json").mkdir()
    for more in ([], ["--force"]):
        _, err = cli.run("lua", "export", tmp_path, *more, code=2)
        assert f"{tmp_path / 'vectors.json'} is a folder: " in err
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.json"]


def test_a_full_disk(tmp_path):
    """If a file cannot be written, none is there afterwards, and the earlier export is whole."""
    size = len(FILES["vectors.json"]) - 1

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}  # Python would leave a file of bytecode that was cut off
    for before in ({}, FILES):
        _, err = cli.run_process("lua", "export", tmp_path, "--json", code=2, preexec_fn=limited, env=env)
        assert json.loads(err)["error"] == f"{tmp_path}: nothing was written: File too large"
        assert content(tmp_path) == before
        cli.run("lua", "export", tmp_path)


def test_many_files_of_others(tmp_path):
    """Three are named, and the others counted."""
    for name in list(FILES)[:5]:
        (tmp_path / name).write_bytes(b"mine")
    _, err = cli.run("lua", "export", tmp_path, code=2)
    assert " and 2 more: name another folder" in err
