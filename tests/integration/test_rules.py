"""Rules of a filter: every way to give them, and everything that has to keep or compare them."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle

import pytest
from support import cli
from support.service import Service, ask

from urifilter_redis import AsyncUriFilter, ConfigMismatch, UriFilter, UriFilterError
from urifilter_redis.bloom.normalize import normalizer
from urifilter_redis.bloom.rules import sha256_of
from urifilter_redis.sdk import FilterAPIClient, FilterAPIError
from urifilter_redis.service import tokens

RULES = [{"domain": "shop.example", "keep": ["id"]}, {"drop": ["sid"]}]
CANONICAL = '[{"domain":"shop.example","keep":["id"]},{"drop":["sid"]}]'
RULES_IN_TOML = '[{ domain = "shop.example", keep = ["id"] }, { drop = ["sid"] }]'
OTHERS = [{"drop": ["sid", "x"]}]
TOML = '[[rule]]\ndrop = ["sid"]\n\n[[rule]]\ndomain = "shop.example"\nkeep = ["id"]\n'
MADE = {"capacity": 1000, "normalize": "loose"}

ONE, SAME, OTHER = (
    "http://shop.example/?id=1&sid=2",
    "https://www.shop.example/?x=3&id=1",
    "http://a.example/?id=1&sid=2",
)


@pytest.fixture
def file(tmp_path):
    """A TOML file with the rules."""
    path = tmp_path / "rules.toml"
    path.write_text(TOML)
    return path


def agree(news) -> None:
    """The filter keeps to the rules."""
    assert news.insert(ONE)
    assert not news.insert(SAME)
    assert news.insert(OTHER)
    assert "https://a.example/?id=1" in news


@pytest.mark.parametrize("shards", [1, 3])
def test_both_clients(any_server, file, shards):
    """Rules are given as a list, as text or as a file; who opens the filter without them has its own."""
    with UriFilter.create("news", redis=any_server.url, rules=RULES, shards=shards, **MADE) as news:
        agree(news)
        assert news.config.rules == CANONICAL
        assert news.info().rules == json.loads(CANONICAL)

    async def again():
        for rules in (list(reversed(RULES)), CANONICAL, file, None):
            async with AsyncUriFilter.create("news", redis=any_server.url, rules=rules, **MADE) as same:
                assert same.config.rules == CANONICAL
                assert not await same.insert(SAME)
        async with AsyncUriFilter.open("news", redis=any_server.url) as same:
            assert await same.contains(SAME)

    asyncio.run(again())


@pytest.mark.parametrize("rules", [OTHERS, [], RULES[:1]])
def test_other_rules_are_refused(any_server, rules):
    """Of an existing filter; the message names them, and nothing is changed."""
    UriFilter.create("news", redis=any_server.url, rules=RULES, **MADE).close()
    with pytest.raises(ConfigMismatch, match="other settings: rules are others") as caught:
        UriFilter.create("news", redis=any_server.url, rules=rules, **MADE)
    assert caught.value.differences["rules"][1] == CANONICAL
    with UriFilter.open("news", redis=any_server.url) as news:
        agree(news)


def test_rules_for_a_filter_that_has_none(any_server):
    """They are refused; an empty list asks for none."""
    UriFilter.create("news", redis=any_server.url, **MADE).close()
    with pytest.raises(ConfigMismatch, match="rules are others"):
        UriFilter.create("news", redis=any_server.url, rules=RULES, **MADE)
    with UriFilter.create("news", redis=any_server.url, rules=[], **MADE) as news:
        assert news.config.rules is None
        assert news.info().rules is None


def test_wrong_rules_make_no_filter(any_server):
    """They are refused with their place, before anything is written."""
    with pytest.raises(ValueError, match="rule 2, drop: it is a list"):
        UriFilter.create("news", redis=any_server.url, rules=[{"host": "a"}, {"drop": "sid"}], **MADE)
    with pytest.raises(ValueError, match="for normalize sorted or loose, and not whatwg"):
        UriFilter.create("news", redis=any_server.url, rules=RULES, capacity=1000, normalize="whatwg")
    assert any_server.ask("dbsize") == 0


def test_where_they_are(any_server):
    """Shard 0 has the rules, the others have their SHA-256, and all the number of the built-in list."""
    with UriFilter.create("news", redis=any_server.url, rules=RULES, shards=3, **MADE) as news:
        metas = [news._session.keys.shard(shard).meta for shard in range(3)]
    found = [any_server.ask("hmget", meta, "rules", "parameter_list") for meta in metas]
    assert found == [[CANONICAL.encode(), b"1"]] + 2 * [[sha256_of(CANONICAL).encode(), b"1"]]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pages", "1", "it has the setting pages, for which this urifilter-redis is too old"),
        ("parameter_list", "2", "parameter_list is 2, for which .* too old"),
        ("rules", '[{"cut_host":"m"}]', "its rules cannot be read .*'cut_host' is no field.* too old"),
        ("rules", '[{"drop":["b","a"]}]', "its rules are written otherwise, for which .* too old"),
    ],
)
def test_what_this_release_does_not_know(any_server, field, value, message):
    """A filter with another setting, list or rule is refused: its items may be others."""
    UriFilter.create("news", redis=any_server.url, rules=RULES, **MADE).close()
    any_server.ask("hset", "urifilter:{news:0}:meta", field, value)
    with pytest.raises(UriFilterError, match=message):
        UriFilter.open("news", redis=any_server.url)
    with pytest.raises(UriFilterError, match=message):
        UriFilter.create("news", redis=any_server.url, **MADE)


def test_pickled_and_copied(any_server):
    """A filter that comes out of pickle, and a copy, have the rules."""
    with UriFilter.create("news", redis=any_server.url, rules=RULES, **MADE) as news:
        agree(news)
        for made in (pickle.loads(pickle.dumps(news)), copy.copy(news)):
            with made:
                assert SAME in made
                assert made.config.rules == CANONICAL


def test_union(any_server):
    """Filters of other rules are not merged; ``settings`` makes one that can be."""
    with UriFilter.create("news", redis=any_server.url, rules=RULES, **MADE) as news:
        agree(news)
        made = {each: news.settings[each] for each in ("seed", "shards")}
        UriFilter.create("other", redis=any_server.url, rules=OTHERS, **MADE | made).close()
        with pytest.raises(ConfigMismatch, match="rules are others"):
            news.union("other")
        with UriFilter.create("all", redis=any_server.url, **news.settings) as all_:
            assert all_.union("news") == 2
            assert SAME in all_


def test_archive(any_server, tmp_path):
    """A restore, with or without a checkpoint, brings the rules back, and so does an exported filter."""
    folder = f"file://{tmp_path / 'archive'}"
    with UriFilter.create("news", redis=any_server.url, archive=folder, rules=RULES, shards=2, **MADE) as news:
        agree(news)
        news.checkpoint()
    exported = tmp_path / "news.urifilter"
    cli.run("archive", "export", "news", exported, "--archive", folder)
    any_server.ask("flushall")
    with UriFilter.open("news", redis=any_server.url, archive=folder) as news:
        assert news.config.rules == CANONICAL
        assert SAME in news
    any_server.ask("flushall")
    with pytest.raises(ConfigMismatch, match="rules are others"):
        UriFilter.create("news", redis=any_server.url, archive=folder, rules=OTHERS, **MADE)
    out, _ = cli.run("check", "--archive-file", exported, given=f"{SAME}\nhttp://b.example/\n".encode())
    assert out == f"seen\t{SAME}\nnew\thttp://b.example/\n".encode()


def test_command_line(any_server, file, tmp_path):
    """``create`` with rules and with those of others; ``info`` and ``digest`` show what they do."""
    where = ("--redis", any_server.url)
    cli.run("create", "news", "--capacity", "10k", "--normalize", "loose", "--rules", file, *where)
    assert cli.run("add", "--filter", "news", "-q", *where, given=f"{ONE}\n{SAME}\n{OTHER}\n".encode()) == (b"", "")
    about = json.loads(cli.run("info", "news", "--json", *where)[0])
    assert (about["inserted"], about["rules"]) == (2, json.loads(CANONICAL))
    assert b'rules                   [{"domain": "shop.example"' in cli.run("info", "news", *where)[0]
    out, _ = cli.run("digest", "--filter", "news", "--explain", *where, SAME)
    steps = ["  host        https://shop.example/?x=3&id=1", "  parameters  https://shop.example/?id=1"]
    assert out.decode().splitlines()[1:] == steps
    digest = out.partition(b"\t")[0]
    seed = about["seed"]
    made = ("--hash", "mmh3", "--seed", seed, "--normalize", "loose", "--rules", file)
    told = json.loads(cli.run("digest", *made, "--explain", "--json", SAME)[0])
    assert told["digest"].encode() == digest
    assert [each["spelling"] for each in told["steps"]] == [each.split()[1] for each in steps]

    others = tmp_path / "others.toml"
    others.write_text('[[rule]]\ndrop = ["x"]\n')
    cli.run("create", "later", "--like", "news", "--rules", others, *where)
    later = json.loads(cli.run("info", "later", "--json", *where)[0])
    assert (later["rules"], later["normalize"], later["seed"]) == ([{"drop": ["x"]}], "loose", seed)
    cli.run("create", "same", "--like", "news", *where)
    assert json.loads(cli.run("info", "same", "--json", *where)[0])["rules"] == about["rules"]
    _, err = cli.run("create", "bad", "--like", "news", "--rules", others, "--capacity", "1k", *where, code=2)
    assert "--like takes all settings but --rules from news: leave out --capacity" in err
    others.write_text('[[rule]]\ndrop = "x"\n')
    _, err = cli.run("create", "bad", "--like", "news", "--rules", others, *where, code=2)
    assert "rule 1, drop: it is a list of names and not 'x'" in err
    _, err = cli.run("create", "bad", "--capacity", "1k", "--rules", others, *where, code=2)
    assert "rule 1, drop" in err or "rules are for normalize" in err


def test_importing(any_server, file, tmp_path):
    """An import makes a filter with rules; digests go only into a filter of the rules that are said."""
    where = ("--redis", any_server.url)
    urls, digests = tmp_path / "urls.txt", tmp_path / "digests.txt"
    urls.write_text(f"{ONE}\n{SAME}\n{OTHER}\n")
    made = ("--normalize", "loose", "--rules", file)
    cli.run("import", "news", "--expect", "1k", *made, "-q", urls, *where)
    with UriFilter.open("news", redis=any_server.url) as news:
        assert (news.inserted(), news.config.rules) == (2, CANONICAL)
    out, _ = cli.run("digest", "--normalize", "loose", "--rules", file, SAME)
    digests.write_bytes(out.partition(b"\t")[0] + b"\n")
    cli.run("create", "md5", "--capacity", "1k", "--hash", "md5", *made, *where)
    said = ("import", "md5", "--digests", "--hash", "md5", "--normalize", "loose", digests, *where)
    _, err = cli.run(*said, code=2)
    assert "filter md5 has other rules, and digests do not show theirs: say --rules FILE with its own" in err
    cli.run(*said, "--rules", file, "-q")
    with UriFilter.open("md5", redis=any_server.url) as news:
        assert SAME in news


@pytest.mark.slow
def test_service_and_its_clients(any_server, file):
    """The service takes rules as a list, in its settings too; its clients take every form, and tell what it says."""
    secret = tokens.new()
    settings = f"[filters.set]\ncapacity = 1000\nnormalize = 'loose'\nrules = {RULES_IN_TOML}\n\n"
    settings += tokens.Token("admin", tokens.digest(secret), access="admin").toml()
    with Service(any_server.url, settings=settings) as service, FilterAPIClient(service.url, secret) as api:
        for name, rules in (("a", RULES), ("b", CANONICAL), ("c", file)):
            api.create(name, rules=rules, **MADE)
            assert api.info(name)["info"]["rules"] == json.loads(CANONICAL)
            assert api.insert_many(name, [ONE, SAME, OTHER]) == [True, False, True]
        api.create("a", **MADE)
        with pytest.raises(FilterAPIError, match="rules are others") as caught:
            api.create("a", rules=OTHERS, **MADE)
        assert caught.value.error_code == "config_mismatch"
        with pytest.raises(FilterAPIError, match="rule 1, drop: it is a list"):
            api.create("d", rules=[{"drop": "sid"}], **MADE)
        path = str(file)  # of a file on the service's machine
        answer = ask(service, "POST", "/v1/filters/d/create", MADE | {"rules": path}, secret)
        assert answer.status == 422
        assert api.info("set")["info"]["rules"] == json.loads(CANONICAL)


def test_scrapy(any_server, file):
    """A crawl's filter has the rules of its settings; with a normalisation the command line's items are its own."""
    pytest.importorskip("scrapy", reason="Scrapy is not installed: pip install '.[scrapy]'")
    from scrapy import Request
    from support.scrapy_parts import run

    kept = ["http://a.example/?b", "http://a.example/?b=", "http://a.example/?q=a%20b", "http://a.example/?c;d"]
    gone = ["http://a.example/?sid=1&b", "http://m.shop.example/?id=1&x", "http://shop.example/?y&id=1"]

    async def test(parts):
        found = await parts.found(*map(Request, kept), *map(Request, gone), Request(f"{kept[0]}#x"))
        return sorted(each.url for each in found)

    made = {"URIFILTER_KEY": "url", "URIFILTER_NORMALIZE": "loose", "URIFILTER_NAME": "news"}
    found = run(any_server, test, URIFILTER_RULES=str(file), **made)
    assert found == sorted([*kept, *gone[1:]])
    with UriFilter.open("news", redis=any_server.url) as news:
        assert news.config.rules == CANONICAL
    given = "".join(f"{each}\n" for each in [*kept, *gone, "http://a.example/?other"])
    out, _ = cli.run("check", "--new", "--filter", "news", "--redis", any_server.url, given=given.encode())
    assert out == b"http://a.example/?other\n"
    with pytest.raises(ConfigMismatch, match="rules are others"):
        run(any_server, test, URIFILTER_RULES=OTHERS, **made)
    with pytest.raises(ValueError, match="URIFILTER_RULES: rules: rule 1, drop: it is a list"):
        run(any_server, test, URIFILTER_RULES=[{"drop": "x"}], **made)


def test_scrapy_of_other_requests():
    """The address of what is no plain GET, which no filter normalises, stays canonical."""
    pytest.importorskip("scrapy", reason="Scrapy is not installed: pip install '.[scrapy]'")
    from scrapy import Request

    from urifilter_redis.scrapy.options import url_item

    request = Request("http://a.example/?b&a", method="POST")
    assert url_item(request, normalized=True) == "POST http://a.example/?a=&b="
    assert url_item(Request("http://a.example/?b&a"), normalized=True) == "http://a.example/?b&a"
    assert url_item(Request("http://a.example/?b&a")) == "http://a.example/?a=&b="


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_scrapy_of_bodies(method):
    """Requests of two bodies are two items, also if the filter leaves out the last parameter of the address."""
    pytest.importorskip("scrapy", reason="Scrapy is not installed: pip install '.[scrapy]'")
    from scrapy import Request

    from urifilter_redis.scrapy.options import url_item

    url = "http://a.example/?id=1&utm_source=a"
    items = {url_item(Request(url, method=method, body=body), normalized=True) for body in ("one", "two")}
    assert set(map(normalizer("loose", CANONICAL), items)) == items
    assert len(items) == 2
