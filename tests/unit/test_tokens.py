"""Tokens: made, stored as hashes, found, and what each may use; ``urifilter token new``."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib

import pytest
from support import cli

from urifilter_redis.protocol.claims import check_holder
from urifilter_redis.service import tokens
from urifilter_redis.service.settings import load
from urifilter_redis.service.tokens import EVERYTHING, Token, bound, digest, find, new

FORM = re.compile(r"urifilter_[A-Za-z0-9_-]{43}")


def made(*arguments) -> tuple[str, str, Token]:
    """Run ``urifilter token new``; return the token, which is on stderr, stdout, and what the settings make of that."""
    out, err = cli.run("token", "new", *arguments)
    (token,) = FORM.findall(err)
    assert err == f"the token, which is shown this once: {token}\n"
    text = out.decode()
    (entry,) = tomllib.loads(text)["tokens"]
    return token, text, Token(entry["name"], entry["digest"], tuple(entry["filters"]), entry["access"])


def test_new():
    """Each is another, of 256 bits, and can be sent as it is in a header."""
    many = {new() for _ in range(1000)}
    assert len(many) == 1000
    assert all(FORM.fullmatch(each) for each in many)


def test_only_the_hash_is_kept():
    """Of a token its SHA-256, whatever text it is; nothing else of it is in what the service keeps."""
    token = new()
    known = Token("one", digest(token))
    assert known.digest == f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    assert token not in repr(known)
    assert token not in known.toml()
    assert digest("ü") == f"sha256:{hashlib.sha256('ü'.encode()).hexdigest()}"
    assert digest("\ud800") != digest("?")


DIGESTS = ["", "x", "sha256:", "sha256:" + "0" * 63, "SHA256:" + "0" * 64, "sha256:" + "g" * 64]
FILTERS = [(), ("",), ("a/b",), ("news", "a b"), ("[ab]",), ("x" * 65,)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *(({"digest": each}, "sha256: and 64 hex digits, as `urifilter token new` prints it") for each in DIGESTS),
        ({"access": "all"}, "access is read, write or admin and not 'all'"),
        *(({"filters": each}, r"filters are names, or patterns with \* and \?") for each in FILTERS),
    ],
)
def test_no_token(wrong, said):
    """It says what a digest is, and not what was given: that might be the token; and what access and filters are."""
    with pytest.raises(ValueError, match=said):
        Token(**{"name": "one", "digest": digest("x")} | wrong)


def test_find_one_of_many():
    """The first, the last and any between; not what is almost one of them."""
    given = [new() for _ in range(500)]
    known = [Token(f"token-{number}", digest(token)) for number, token in enumerate(given)]
    assert [find(known, token).name for token in given] == [each.name for each in known]
    token = given[250]
    for wrong in (
        "",
        token[:-1],
        token + "x",
        token.upper(),
        f" {token}",
        digest(token),
        known[250].name,
        "\ud800",
        "ü",
    ):
        assert find(known, wrong) is None
    assert find([], token) is None


def test_all_are_compared(monkeypatch):
    """It takes as many comparisons whichever token is given, each in constant time."""
    given = [new() for _ in range(5)]
    known = [Token(f"token-{number}", digest(token)) for number, token in enumerate(given)]
    compared, compare = [], tokens.hmac.compare_digest

    def counted(one, other):
        compared.append(one)
        return compare(one, other)

    monkeypatch.setattr(tokens.hmac, "compare_digest", counted)
    for token in (*given, "nobody's"):
        compared.clear()
        find(known, token)
        assert compared == [each.digest for each in known]


@pytest.mark.parametrize(
    ("patterns", "yes", "no"),
    [
        (("*",), ["news", "a.b-C_9"], []),
        (("news",), ["news"], ["News", "news-1", "anews", "new", ""]),
        (("news-*",), ["news-", "news-1", "news-a.b"], ["news", "xnews-1", "NEWS-1"]),
        (("news-?",), ["news-1"], ["news-", "news-12"]),
        (("*.raw",), ["a.raw", "a.b.raw"], ["araw", "a.raw.x"]),
        (("a.b",), ["a.b"], ["axb"]),
        (("news", "shop-*"), ["news", "shop-1"], ["shop"]),
    ],
)
def test_may_use(patterns, yes, no):
    """Whole names, and patterns of a whole name; upper and lower case differ."""
    token = Token("one", digest("x"), patterns)
    assert [name for name in (*yes, *no) if token.may_use(name)] == yes
    assert token.may_use_all == (patterns == ("*",))


def test_access():
    """Write includes read; read is what a token has unless its settings say more."""
    assert not Token("one", digest("x")).may_write
    assert not Token("one", digest("x"), access="read").may_write
    assert Token("one", digest("x"), access="write").may_write


def test_token_new(tmp_path):
    """The token is told once, on stderr; stdout is TOML with its hash, as the service takes it."""
    token, text, known = made("crawlers")
    assert token not in text
    assert known == Token("crawlers", digest(token), ("*",), "write")
    file = tmp_path / "settings.toml"
    file.write_text(f'port = 1\n{text}[[tokens]]\nname = "x"\ndigest = "{digest("x")}"\n')
    assert [each.token() for each in load({}, file).tokens] == [known, Token("x", digest("x"))]
    assert made("crawlers")[0] != token


def test_token_new_for_some_filters():
    """--filter takes names and patterns, --access what it may do."""
    token, _, known = made("look.er_1", "--filter", "news", "--filter", "shop-*", "--access", "read")
    assert known == Token("look.er_1", digest(token), ("news", "shop-*"), "read")


def test_token_new_as_json():
    """--json has the token and the fields of its settings."""
    out, err = cli.run("token", "new", "crawlers", "--filter", "news", "--json")
    told = json.loads(out)
    token = told.pop("token")
    assert FORM.fullmatch(token)
    assert told == {"name": "crawlers", "digest": digest(token), "filters": ["news"], "access": "write"}
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b"], "1 to 64 of A-Z a-z 0-9 . _ -"),
        ([""], "1 to 64 of A-Z a-z 0-9 . _ -"),
        (["x" * 65], "1 to 64 of A-Z a-z 0-9 . _ -"),
        (['a"\n[[tokens]]'], "1 to 64 of A-Z a-z 0-9 . _ -"),
        (["one", "--access", "all"], "'read', 'write'"),
        (["one", "--filter", "news", "--filter", "a/b"], "names, or patterns with * and ?"),
        ([], "NAME"),
    ],
)
def test_token_new_wrong(arguments, said):
    """Exit 2 with what is allowed, and no token."""
    out, err = cli.run("token", "new", *arguments, code=2)
    assert out == b""
    assert said in err
    assert FORM.search(err) is None


def test_it_needs_nothing_of_the_server():
    """Tokens can be made where the packages of the service are not installed."""
    hidden = (
        "fastapi",
        "starlette",
        "uvicorn",
        "pydantic",
        "pydantic_settings",
        "prometheus_client",
        "httptools",
        "httpx",
    )
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden!r}))\n"
        "from urifilter_redis.cli import main\nsys.argv = ['urifilter', 'token', 'new', 'one']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert (done.returncode, len(FORM.findall(done.stderr.decode()))) == (0, 1)
    assert tomllib.loads(done.stdout.decode())["tokens"][0]["name"] == "one"


def test_holders_of_tokens():
    """A holder is another with each token, always the same with one, and may be one whatever its digits are."""
    some = [EVERYTHING, *(Token("same name", digest(new()), access="write") for _ in range(3))]
    holder = "0123456789abcdef"
    made = {bound(each, holder) for each in some}
    assert len(made) == 4
    assert holder not in made
    assert made == {bound(each, holder.upper()) for each in some}
    assert bound(EVERYTHING, holder) == "2bdaa5dac80ca294"
    many = {bound(EVERYTHING, f"{number:016x}") for number in range(2000)}
    assert len(many) == 2000
    assert {check_holder(each) for each in many} == many
