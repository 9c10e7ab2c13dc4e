"""The settings of the service: where they come from, what is allowed, and what is said of those that are wrong."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re

import pytest

from urifilter_redis.http_api import DEFAULT_PATH, DEFAULT_PORT
from urifilter_redis.protocol.config import Settings
from urifilter_redis.service.settings import FilterSettings, Limits, ServiceSettings, is_loopback, load
from urifilter_redis.service.tokens import Token, digest

DIGEST = digest("one")
TOKEN = f'[[tokens]]\nname = "one"\ndigest = "{DIGEST}"\n'

#: By name: what is said by TOML, the environment and a flag, and what comes of each. (Tokens, filters and limits have
#: no flags; they are given as ``load`` takes them.)
EVERYWHERE = {
    "redis_url": ("URIFILTER_REDIS_URL", ["redis://toml", "redis://env", "redis://flag"]),
    "prefix": ("URIFILTER_PREFIX", ["toml", "env", "flag"]),
    "archive": ("URIFILTER_ARCHIVE", ["file:///toml", "file:///env", "file:///flag"]),
    "timeout": ("URIFILTER_TIMEOUT", [0.5, 60.0, 3600.0]),
    "rotate": ("URIFILTER_ROTATE", ["never", "auto", "never"]),
    "host": ("URIFILTER_HOST", ["127.0.0.1", "127.0.0.2", "::1"]),
    "port": ("URIFILTER_PORT", [1, 2, 0]),
    "path": ("URIFILTER_PATH", ["/toml", "/env/x", "/flag"]),
    "workers": ("URIFILTER_WORKERS", [2, 3, 256]),
    "log_format": ("URIFILTER_LOG_FORMAT", ["json", "text", "json"]),
    "log_requests": ("URIFILTER_LOG_REQUESTS", [True, False, True]),
}
NESTED = {
    "body": ("URIFILTER_LIMITS__BODY", [2000, 1 << 30]),
    "items": ("URIFILTER_LIMITS__ITEMS", [1, 100_000]),
    "item": ("URIFILTER_LIMITS__ITEM", [1, 1 << 24]),
    "seconds": ("URIFILTER_LIMITS__SECONDS", [0.5, 3600.0]),
    "requests": ("URIFILTER_LIMITS__REQUESTS", [1, 100_000]),
    "wait": ("URIFILTER_LIMITS__WAIT", [0.5, 3600.0]),
    "wrong_tokens": ("URIFILTER_LIMITS__WRONG_TOKENS", [1, 1_000_000]),
}


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    """No setting is in the environment."""
    for name in [name for name in os.environ if name.upper().startswith("URIFILTER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def toml(tmp_path):
    """Write a settings file."""

    def write(text):
        file = tmp_path / "settings.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def wrong(flags, file=None) -> dict[str, str]:
    """Return what is said of each wrong setting."""
    with pytest.raises(ValueError) as caught:
        load(flags, file)
    head, *lines = str(caught.value).split("\n")
    assert head.startswith("wrong settings")
    assert file is None or str(file) in head
    return dict(line.strip().split(": ", 1) for line in lines)


# where they come from


def test_defaults():
    """Nothing is said: this machine alone, one process, no filters, no tokens."""
    settings = load({})
    assert settings.model_dump() == {
        "redis_url": None,
        "prefix": "urifilter",
        "archive": None,
        "timeout": None,
        "rotate": "auto",
        "host": "127.0.0.1",
        "port": DEFAULT_PORT,
        "path": DEFAULT_PATH,
        "workers": 1,
        "log_format": "text",
        "log_requests": False,
        "trusted_proxies": (),
        "limits": {
            "body": 4 << 20,
            "items": 10_000,
            "item": 1 << 16,
            "seconds": 10.0,
            "requests": 100,
            "wait": 5.0,
            "wrong_tokens": 20,
        },
        "tokens": (),
        "filters": {},
    }
    assert (DEFAULT_PORT, DEFAULT_PATH) == (8000, "/cr-clawr/uri_filter/api/uri_filter")


def test_every_setting_is_tested():
    """A setting that is added is to be added here."""
    assert {*EVERYWHERE, "limits", "tokens", "trusted_proxies", "filters"} == set(ServiceSettings.model_fields)
    assert set(NESTED) == set(Limits.model_fields)


def test_trusted_proxies(toml, monkeypatch):
    """Addresses or networks, in a TOML list or as JSON in the environment; nothing else."""
    file = toml('trusted_proxies = ["127.0.0.1", "10.0.0.0/8", "fd00::/8"]\n')
    assert list(map(str, load({}, file).trusted_proxies)) == ["127.0.0.1/32", "10.0.0.0/8", "fd00::/8"]
    monkeypatch.setenv("URIFILTER_TRUSTED_PROXIES", '["::1"]')
    assert list(map(str, load({}, file).trusted_proxies)) == ["::1/128"]
    monkeypatch.setenv("URIFILTER_TRUSTED_PROXIES", '["localhost", "10.0.0.1/8"]')
    assert wrong({}).keys() == {"trusted_proxies.0", "trusted_proxies.1"}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_flags_beat_environment_beats_toml(name, toml, monkeypatch):
    """Of each setting; the last that is left is the TOML file's."""
    variable, (in_toml, in_env, flag) = EVERYWHERE[name]
    file = toml(f"{name} = {json.dumps(in_toml)}\n")
    monkeypatch.setenv(variable, str(in_env))
    assert getattr(load({name: flag}, file), name) == flag
    assert getattr(load({}, file), name) == in_env
    assert getattr(load({}), name) == in_env
    monkeypatch.delenv(variable)
    assert getattr(load({}, file), name) == in_toml
    assert getattr(load({name: flag}), name) == flag


@pytest.mark.parametrize("name", NESTED)
def test_environment_beats_toml_for_one_limit(name, toml, monkeypatch):
    """The others stay as the file says, or as they are by default."""
    variable, (in_toml, in_env) = NESTED[name]
    other = "items" if name == "body" else "body"
    file = toml(f"[limits]\n{name} = {in_toml}\n{other} = 4321\n")
    assert load({}, file).limits.model_dump() == Limits().model_dump() | {name: in_toml, other: 4321}
    monkeypatch.setenv(variable, str(in_env))
    assert load({}, file).limits.model_dump() == Limits().model_dump() | {name: in_env, other: 4321}
    assert load({}).limits.model_dump() == Limits().model_dump() | {name: in_env}
    assert load({"limits": {name: in_toml}}, file).limits.model_dump()[name] == in_toml


def test_tokens_and_filters_of_the_environment(toml, monkeypatch):
    """As JSON: tokens take the place of the file's; a filter's options join those of the file."""
    file = toml(f"{TOKEN}[filters.news]\ncapacity = 5\nlayout = 'classic'\n")
    monkeypatch.setenv("URIFILTER_TOKENS", json.dumps([{"name": "two", "digest": digest("two"), "filters": ["news"]}]))
    monkeypatch.setenv("URIFILTER_FILTERS", json.dumps({"news": {"capacity": 1000}, "more": {"capacity": 10}}))
    settings = load({}, file)
    assert [each.token() for each in settings.tokens] == [Token("two", digest("two"), ("news",), "read")]
    assert settings.filters == {
        "news": FilterSettings(capacity=1000, layout="classic"),
        "more": FilterSettings(capacity=10),
    }


def test_limits_of_the_environment_as_json(monkeypatch):
    """URIFILTER_LIMITS has several at once, and the name of one beats it."""
    monkeypatch.setenv("URIFILTER_LIMITS", json.dumps({"body": 2048, "items": 7}))
    monkeypatch.setenv("URIFILTER_LIMITS__ITEMS", "8")
    assert load({}).limits == Limits(body=2048, items=8)


def test_empty_environment(monkeypatch):
    """An empty variable says nothing; one that is none of the settings' belongs to somebody else."""
    for variable in ("URIFILTER_PORT", "URIFILTER_REDIS_URL", "URIFILTER_ARCHIVE", "URIFILTER_TOKENS"):
        monkeypatch.setenv(variable, "")
    for variable in ("URIFILTER_DATA_DIR", "URIFILTER_API_URL", "URIFILTER_API_TOKEN", "URIFILTER_SETTINGS"):
        monkeypatch.setenv(variable, "x")
    assert load({}) == load({"port": DEFAULT_PORT})


def test_all_of_a_file(toml):
    """Tokens and filters, as a file names them, come out as the library takes them."""
    settings = load(
        {},
        toml(f"""
            host = "0.0.0.0"
            archive = ""

            [filters.news]
            capacity = 1e8
            error_rate = 1e-6
            retention = "rolling"
            slices = 30
            period = "1d"
            expire_after = "last-seen"

            [filters."a.b-c_D"]
            capacity = 1000
            layout = "counting"
            hash = "blake2b"
            seed = "{"0" * 32}"
            normalize = "sorted"
            shards = 2

            {TOKEN}
            filters = ["news", "a.*"]
            access = "write"
        """),
    )
    assert {name: each.settings() for name, each in settings.filters.items()} == {
        "news": Settings(
            capacity=100_000_000, error_rate=1e-6, retention="rolling", slices=30, period="1d", expire_after="last-seen"
        ),
        "a.b-c_D": Settings(
            capacity=1000, layout="counting", hash="blake2b", seed="0" * 32, normalize="sorted", shards=2
        ),
    }
    assert [each.token() for each in settings.tokens] == [Token("one", DIGEST, ("news", "a.*"), "write")]
    assert settings.archive is None


def test_filters_take_what_the_library_takes():
    """The options of a filter and their defaults are those of ``UriFilter.create``."""
    assert FilterSettings(capacity=1000).settings() == Settings(capacity=1000)
    assert list(FilterSettings.model_fields) == [*Settings.__dataclass_fields__, "large"]


def test_workers_get_them(toml, monkeypatch):
    """They survive the way to another process, whatever that one's environment says."""
    file = toml(f"port = 1\n[limits]\nitems = 7\n{TOKEN}[filters.news]\ncapacity = 1000\n")
    settings = load({"workers": 2, "redis_url": "redis://flag"}, file)
    sent = pickle.dumps(settings)
    monkeypatch.setenv("URIFILTER_PORT", "2")
    monkeypatch.setenv("URIFILTER_REDIS_URL", "redis://env")
    file.unlink()
    again = pickle.loads(sent)
    assert type(again) is ServiceSettings
    assert again == settings
    assert (again.port, again.workers, again.redis_url, again.limits.items) == (1, 2, "redis://flag", 7)
    assert again.tokens[0].token() == settings.tokens[0].token()
    assert again.filters["news"].settings() == Settings(capacity=1000)


# what is wrong

_NAME = "a filter's name is 1 to 64 of A-Z a-z 0-9 . _ -"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("prefix = '{x}'", "prefix", "a key prefix is 1 to 64 of A-Z a-z 0-9 . _ : - and not '{x}'"),
        ("redis_url = 5", "redis_url", "valid string"),
        ("archive = 5", "archive", "valid string"),
        ("port = 65536", "port", "less than or equal to 65535"),
        ("port = -1", "port", "greater than or equal to 0"),
        ("port = 'http'", "port", "valid integer"),
        ("port = 80.5", "port", "valid integer"),
        ("host = 5", "host", "valid string"),
        ("path = 'api'", "path", "pattern"),
        ("path = '/'", "path", "pattern"),
        ("path = '/a/'", "path", "pattern"),
        ("path = '/{x}'", "path", "pattern"),
        ("workers = 0", "workers", "greater than or equal to 1"),
        ("workers = 257", "workers", "less than or equal to 256"),
        ("log_format = 'xml'", "log_format", "'text' or 'json'"),
        ("log_requests = 'maybe'", "log_requests", "valid boolean"),
        ("limits = 5", "limits", "valid dictionary"),
        ("[limits]\nbody = 1023", "limits.body", "greater than or equal to 1024"),
        ("[limits]\nbody = 1_073_741_825", "limits.body", "less than or equal to 1073741824"),
        ("[limits]\nitems = 0", "limits.items", "greater than or equal to 1"),
        ("[limits]\nitems = 100_001", "limits.items", "less than or equal to 100000"),
        ("[limits]\nitem = 0", "limits.item", "greater than or equal to 1"),
        ("[limits]\nitem = 16_777_217", "limits.item", "less than or equal to 16777216"),
        ("[limits]\nseconds = 0", "limits.seconds", "greater than 0"),
        ("[limits]\nseconds = inf", "limits.seconds", "less than or equal to 3600"),
        ("[limits]\nseconds = nan", "limits.seconds", "Input should be "),
        ("[limits]\nrequests = 0", "limits.requests", "greater than or equal to 1"),
        ("[limits]\nrequests = 'many'", "limits.requests", "valid integer"),
        ("tokens = 'x'", "tokens", "valid tuple"),
        (TOKEN.replace('"one"', '"a b"'), "tokens.0.name", "pattern"),
        (TOKEN.replace('"one"', f'"{"x" * 65}"'), "tokens.0.name", "pattern"),
        (TOKEN.replace(DIGEST, DIGEST.upper()), "tokens.0", "digest is sha256: and 64 hex digits"),
        (TOKEN.replace("sha256:", "md5:"), "tokens.0", "digest is sha256: and 64 hex digits"),
        (TOKEN + "access = 'all'", "tokens.0.access", "'read', 'write' or 'admin'"),
        (TOKEN + "filters = 'news'", "tokens.0.filters", "valid tuple"),
        (TOKEN + "filters = []", "tokens.0", "filters are names, or patterns with * and ?"),
        (TOKEN + "filters = ['a/b']", "tokens.0", "filters are names, or patterns with * and ?"),
        (TOKEN + "[[tokens]]\nname = 'two'", "tokens.1.digest", "required"),
        (f"{TOKEN}[[tokens]]\ndigest = '{DIGEST}'", "tokens.1.name", "required"),
        ("filters = []", "filters", "valid dictionary"),
        ("[filters.'a b']\ncapacity = 1000", "filters", _NAME + " and not 'a b'"),
        ("[filters.news]", "filters.news.capacity", "required"),
        ("[filters.news]\ncapacity = '100M'", "filters.news.capacity", "valid integer"),
    ],
)
def test_wrong(text, name, said, toml):
    """Its name, where it stands, and what is allowed; nothing else is complained about."""
    told = wrong({}, toml(text))
    assert list(told) == [name]
    assert said in told[name]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("capacity = 0", "capacity is a whole number from 1 up and not 0"),
        ("error_rate = 2.0", "error_rate is from 1e-09 to 0.5 and not 2.0"),
        ("retention = 'ring'", "retention ring needs slices (their number) and period (45s, 10m, 6h, 1d, 2w)"),
        ("retention = 'rolling'\nslices = 2\nperiod = 'soon'", "a period is 45s, 10m, 6h, 1d or 2w"),
        ("period = '1d'", "period is not for retention forever"),
        ("write = 'all'", "write is not for retention forever"),
        ("expire_after = 'last-seen'", "expire_after is not for retention forever"),
        ("seed = 'x'", "the seed of mmh3 is a number from 0 to 4294967295"),
    ],
)
def test_wrong_options_of_a_filter(options, said, toml):
    """The message says which filter, and what is allowed."""
    capacity = "" if options.startswith("capacity") else "capacity = 1000\n"
    told = wrong({}, toml(f"[filters.fine]\ncapacity = 10\n[filters.news]\n{capacity}{options}\n"))
    assert list(told) == ["filters.news"]
    assert said in told["filters.news"]


def test_several_are_wrong(toml, monkeypatch):
    """Flags, environment and file, top level and nested: each is named, in one go."""
    monkeypatch.setenv("URIFILTER_LIMITS__BODY", "1")
    file = toml(
        "log_format = 'xml'\n[limits]\nitems = 0\n[filters.a]\ncapacity = 0\n[filters.b]\ncapacity = 5\nhash = 'x'\n"
        "[[tokens]]\nname = 'one'\ndigest = 'x'\n[[tokens]]\nname = '?'\n"
    )
    told = wrong({"port": -1, "workers": 0}, file)
    assert set(told) == {
        "port", "workers", "log_format", "limits.body", "limits.items", "filters.a", "filters.b", "tokens.0",
        "tokens.1.name", "tokens.1.digest",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "there"),
    [
        ("colour = 1", "colour", ServiceSettings),
        ("[limits]\ncolour = 1", "limits.colour", Limits),
        (TOKEN + "colour = 1", "tokens.0.colour", None),
        ("[filters.news]\ncapacity = 9\ncolour = 1", "filters.news.colour", FilterSettings),
    ],
)
def test_unknown_names(text, name, there, toml):
    """It is said what there is."""
    names = sorted(there.model_fields) if there else ["access", "digest", "filters", "name"]
    last = name.rsplit(".", 1)[-1]
    assert wrong({}, toml(text)) == {name: f"there is no setting {last}; there are {', '.join(names)}"}


@pytest.mark.parametrize("name", ["URIFILTER_REDIS", "URIFILTER_TOKEN", "URIFILTER_LIMIT__BODY", "urifilter_Hots"])
def test_unknown_setting_in_the_environment(name, monkeypatch):
    """A setting that is misspelt there is refused, with those that there are; its value is not told."""
    monkeypatch.setenv(name, "hunter2")
    found = wrong({})
    assert list(found) == [name]
    assert "URIFILTER_REDIS_URL, " in found[name]
    assert "hunter2" not in found[name]
    monkeypatch.setenv(name, "")
    load({})


def test_unknown_limit_in_the_environment(monkeypatch):
    """A limit that is misspelt there is refused, too."""
    monkeypatch.setenv("URIFILTER_LIMITS__BODDY", "5000")
    assert list(wrong({})) == ["limits.boddy"]


@pytest.mark.parametrize("name", ["port", "workers", "limits.items", "filters.news.capacity", "filters.news.slices"])
def test_true_is_no_number(name, toml):
    """``port = true`` is a mistake and not port 1."""
    retention = "" if name.endswith("capacity") else "filters.news.capacity = 1000\n"
    if name.endswith("slices"):
        retention += "filters.news.retention = 'ring'\nfilters.news.period = '1d'\n"
    (named,) = wrong({}, toml(f"{retention}{name} = true"))
    assert named in {name, name.rpartition(".")[0]}


def test_names_of_tokens_differ(toml):
    """Two of one name could not be told apart in a log."""
    with pytest.raises(ValueError, match="tokens: each has a name of its own"):
        load({}, toml(TOKEN + TOKEN.replace(DIGEST, digest("two"))))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "", "0", "127.0.0.1.example.org"])
def test_a_host_that_others_reach_wants_tokens(host, toml):
    """Without them it is refused, with what to do; with one it is not."""
    with pytest.raises(ValueError, match=rf"host {re.escape(host)} is not this machine alone.*`urifilter token new"):
        load({"host": host})
    assert load({"host": host}, toml(TOKEN)).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine_alone(host):
    """No tokens are wanted there."""
    assert is_loopback(host)
    assert load({"host": host}).host == host


# files


def test_no_such_file(tmp_path):
    """Its name is said; it is not taken for an empty one."""
    with pytest.raises(FileNotFoundError, match=r"none\.toml"):
        load({}, tmp_path / "none.toml")
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        load({}, tmp_path)


@pytest.mark.parametrize("text", ["port 8000", "a = 1\na = 2", "[limits", b"\xff\xfe", b"port = 1 # \xe9\n"])
def test_no_toml(text, toml):
    """The message names the file."""
    file = toml(text)
    with pytest.raises(ValueError, match=re.escape(str(file))):
        load({}, file)


@pytest.mark.parametrize("variable", ["URIFILTER_TOKENS", "URIFILTER_FILTERS", "URIFILTER_LIMITS"])
def test_no_json(variable, monkeypatch):
    """The message names the setting."""
    monkeypatch.setenv(variable, "{urifilter_secret")
    with pytest.raises(ValueError, match=variable.removeprefix("URIFILTER_").lower()) as caught:
        load({})
    assert "secret" not in str(caught.value)


# secrets


@pytest.mark.parametrize(
    "text",
    [
        'archive = "mongodb://user:hunter2@host"',
        'archive = "mongodb://user:sec/hunter2@host/x"',
        'archive = "mongodb://user:hunter2@hunter2@host:99999/x"',
        'archive = "https://user:hunter2@host/x"',
        'archive = "user:hunter2@host/x"',
        'redis_url = ["redis://:hunter2@host"]',
        'redis_url = "redis://:hunter2@host"\nport = 99999',
        TOKEN.replace(DIGEST, "urifilter_hunter2"),
        TOKEN.replace('"one"', '"urifilter_hunter2?"'),
        TOKEN + 'access = "urifilter_hunter2"',
        'tokens = ["urifilter_hunter2"]',
        'tokens = "urifilter_hunter2"',
        '[tokens]\none = "urifilter_hunter2"',
        f'{TOKEN}token = "urifilter_hunter2"',
        'log_requests = "urifilter_hunter2"',
        'redis_url = "redis://:hunter2@host',
        "token = urifilter_hunter2",
    ],
    ids=itertools.count(),
)
def test_no_secret_is_told(text, toml):
    """Whatever is wrong: neither a password nor a token is in the message, nor in what a traceback would show."""
    with pytest.raises(ValueError) as caught:
        load({}, toml(text))
    error = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
