"""What FerretDB 1 cannot do, as the page about backups tells it."""

from __future__ import annotations

import functools
import os

import pymongo
import pytest
from support import cli, mongo
from support.together import together

from urifilter_redis import ArchiveError
from urifilter_redis.engine.backend import Key
from urifilter_redis.engine.driver import drive
from urifilter_redis.storage.backends import open_backend

pytestmark = pytest.mark.skipif(
    not os.environ.get(mongo.FERRETDB), reason=f"{mongo.FERRETDB} does not name the program of tests/peers/ferretdb"
)

KEY = Key("news", "checkpoint", "0123456789abcdef")


def test_doctor_says_what_it_is(mongodb):
    """A note, with what to do; the archive can be used."""
    said = cli.run("doctor", "--archive", mongodb)[0].decode()
    assert "note" in said
    assert "FerretDB 1 has no atomic updates" in said


def test_updates_are_not_atomic(mongodb):
    """Several of 8 rivals replace one document: with this the page can go when it fails."""
    rivals = [open_backend(mongodb) for _ in range(8)]
    assert drive(rivals[0].swap(KEY, None, b"0"))
    most, text = 0, b"0"
    for number in range(1, 200):
        wins = []

        def work(backend, text=text, new=b"%d" % number, wins=wins):
            wins.append(drive(backend.swap(KEY, text, new)))

        together(functools.partial(work, each) for each in rivals)
        most, text = max(most, sum(wins)), b"%d" % number
        if most > 1:
            break
    for each in rivals:
        drive(each.close())
    assert most > 1


@pytest.mark.parametrize("mechanism", ["", "?authMechanism=SCRAM-SHA-256"])
def test_it_has_no_users(mongodb, mechanism):
    """A name and a password are refused; the error has neither."""
    backend = open_backend(mongodb.replace("//", "//me:hidden@") + mechanism)
    with pytest.raises(ArchiveError, match="Unsupported authentication mechanism") as caught:
        drive(backend.read(KEY))
    assert "hidden" not in str(caught.value)
    drive(backend.close())


def test_it_has_no_transactions(mongodb):
    """The archive uses none; sessions are there."""
    with pymongo.MongoClient(mongodb) as client, client.start_session() as session:
        pages = client.get_default_database()["pages"]
        assert pages.find_one({}, session=session) is None
        with pytest.raises(pymongo.errors.OperationFailure), session.start_transaction():
            pages.insert_one({}, session=session)
