"""The folders in which the workers of services share their counts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from urifilter_redis.service import folders
from urifilter_redis.service.folders import own_folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_dead_services(place):
    """They go when a service begins; those of others that run, and what else is there, stay."""
    dead = place / "urifilter-metrics-dead"
    dead.mkdir()
    (dead / "counter_1.db").write_bytes(b"x")
    (place / "urifilter-metrics-file").write_text("")
    (place / "urifilter-metrics-link").symlink_to(place)
    (place / "else").mkdir()
    with own_folder() as first:
        assert not dead.exists()
        with own_folder() as second:
            assert {Path(first), Path(second)} < set(place.iterdir())
        assert not Path(second).exists()
        assert Path(first).exists()
    assert sorted(each.name for each in place.iterdir()) == ["else", "urifilter-metrics-file", "urifilter-metrics-link"]


def test_one_that_begins_in_the_same_moment(place, monkeypatch):
    """A folder that another service has taken for dead, before it was locked, is made once more."""
    make, made = tempfile.mkdtemp, []

    def mkdtemp(**named):
        made.append(make(**named))
        if len(made) == 1:
            folders._remove_if_dead(Path(made[0]))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    with own_folder() as folder:
        assert folder == made[1] != made[0]
        assert Path(folder).exists()
