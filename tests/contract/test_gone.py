"""A filter that is gone is told as such, and is never an empty one; one of its name made anew is another."""

from __future__ import annotations

from support.surfaces import JSON, LIBRARY, on, refused


def all_of(news, mine):
    """Return all methods, each as a call."""
    of_items = (news.insert_many, news.unique, news.contains_many, news.ages, news.forget)
    of_holders = (mine.claim_many, mine.commit, mine.release, mine.reject)
    calls = [lambda method=method: method(["a"]) for method in of_items]
    calls += [lambda method=method: method(["a"]) for method in of_holders[:3]]
    calls += [lambda: mine.reject(["a"], "404"), mine.reclaim, mine.outstanding]
    return [*calls, news.in_flight, news.dead_letters, news.retry_dead_letters]


def test_a_filter_that_there_never_was(surface, make):
    """None is made by the way."""
    make("another")
    if surface.name in LIBRARY:
        with refused("filter_not_found"):
            surface.open("news")
        return
    news = surface.open("news")
    for call in all_of(news, news.unclosed(lease=3600)):
        with refused("filter_not_found"):
            call()


def test_a_filter_that_was_dropped(news, surface):
    """Whatever is asked; claims are gone with it."""
    news.insert_many(["a"])
    mine = news.unclosed(lease=3600)
    mine.claim_many(["b"])
    surface.made.drop()
    for call in all_of(news, mine):
        with refused("filter_not_found"):
            call()


def test_one_of_its_name_that_was_made_anew(news, surface, make):
    """Who has the old one open is told, and answers nothing wrong; who opens it begins with nothing."""
    news.insert_many(["a", "b"])
    surface.made.drop()
    anew = make(capacity=1000)
    assert anew.insert_many(["a"]) == [True]
    if surface.name in LIBRARY:
        for method in (news.insert_many, news.contains_many, news.forget):
            with refused("config_mismatch"):
                method(["a", "b"])
    else:
        assert news.contains_many(["a", "b"]) == [True, False]
    assert surface.open().insert_many(["a", "b"]) == [False, True]


@on(*JSON)
def test_the_service_goes_on_with_filters_that_come_and_go(news, surface, make):
    """Without being started again."""
    for number in range(3):
        assert news.insert_many([str(number), "each time"]) == [True, True]
        surface.made.drop()
        with refused("filter_not_found"):
            news.insert_many(["gone"])
        make(capacity=1000 + number)
