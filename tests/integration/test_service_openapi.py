"""What the service says of itself in OpenAPI is what it does: schemathesis asks what it allows and what it forbids."""

from __future__ import annotations

import collections
import re

import pytest
from support.service import Service, ask, known, request

from urifilter_redis.http_api import ERROR_CODES, OPERATIONS
from urifilter_redis.service import tokens
from urifilter_redis.service.descriptions import DESCRIPTIONS, FILTER

pytestmark = pytest.mark.slow

FILTERS = """
[filters.forever]
capacity = 100_000
[filters.counting]
capacity = 1000
layout = "counting"
[filters.ring]
capacity = 1000
retention = "ring"
slices = 3
period = "1d"
"""
NAMES = ("forever", "counting", "ring", "missing")
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
TOKEN = tokens.new()
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}

#: The statuses with which schemathesis expects a wrong request to be refused.
REFUSED = ("400", "401", "403", "404", "405", "406", "409", "415", "422", "428", "429", "5xx")

#: Filters that can be merged have one seed.
SEED = {"seed": 1}

#: Cases to draw for each operation, besides those that are enumerated: each border of each rule, each wrong type.
EXAMPLES = 50


@pytest.fixture(scope="module")
def alone(redis):
    """A service without tokens."""
    with Service(redis.url, settings=FILTERS) as service:
        yield service
        assert "Traceback" not in service.log()


@pytest.fixture(scope="module")
def guarded(redis):
    """A service with a token."""
    token = known("all", TOKEN, "write")
    limits = "[limits]\nwrong_tokens = 1_000_000\n"  # schemathesis sends many
    with Service(redis.url, "--prefix", "guarded", settings=limits + FILTERS + token) as service:
        yield service
        assert "Traceback" not in service.log()
        assert TOKEN not in service.log()


def look(service, **headers):
    """Return what schemathesis finds, and how many cases it has tried of each operation."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is missing: pip install '.[test-slow]'")
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema

    config = SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "headers": headers,
            "continue-on-failure": True,
            # A list that is too long for the schema may be too long for the body, too, and that is told first.
            "checks": {"negative_data_rejection": {"expected-statuses": [*REFUSED, "413"]}},
            "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none"},
        }
    )
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json", headers=headers, config=config)
    schema.hook(map_case)
    found, tried = [], collections.Counter()
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            tried[event.recorder.label] += len(event.recorder.interactions)
            for key, checks in event.recorder.checks.items():
                asked = event.recorder.cases[key].value.as_curl_command()
                failures = [check.failure_info.failure for check in checks if check.failure_info is not None]
                found += [f"{failure.title}: {failure.message}\n{asked}" for failure in failures]
        elif isinstance(event, events.NonFatalError):
            found.append(f"{event.label}: {event.value!r}")
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.SchemaAnalysisWarnings):
            found += map(str, event.warnings)
        elif isinstance(event, events.EngineFinished):
            found += map(str, event.failures)
    return found, tried


def map_case(context, case):
    """Ask about filters that there are, and in ways that no schema can say: what is drawn would be neither."""
    body = case.body if isinstance(case.body, dict) else {}
    for where, field in ((case.path_parameters, "filter"), (body, "filter_typeid")):
        name = where.get(field)
        if isinstance(name, str) and NAME.fullmatch(name):
            where[field] = NAMES[sum(name.encode()) % len(NAMES)]
    given, payloads, places = (body.get(name) for name in ("items", "payloads", "base64"))
    if isinstance(given, list) and isinstance(payloads, list):  # one each, which no schema can say
        body["payloads"] = [*payloads, *[None] * len(given)][: len(given)]
    if isinstance(places, list) and all(type(place) in {int, float} and place >= 0 == place % 1 for place in places):
        body["base64"] = []  # nor that they are positions of base64
    if isinstance(body.get("reason"), str) and body.get("holder") is None:  # nor that only a holder gives up
        body["reason"] = None
    if case.meta is not None and case.meta.generation.mode.is_positive:  # nor which settings go together
        if case.path.endswith("/create") or case.method == "PUT":
            case.body = {"capacity": 1000}
        elif case.path.endswith("/rotate") and isinstance(case.body, dict) and body.get("expected_epoch") is None:
            body["dry_run"] = True
    return case


@pytest.mark.nightly
def test_schemathesis_finds_nothing_without_tokens(alone):
    """Every answer is one that is documented; what is not allowed is refused, and what is allowed is not."""
    found, tried = look(alone)
    assert found == []
    there = {f"{m.upper()} {p}" for p, ms in document(alone)["paths"].items() for m in ms}
    assert set(tried) == there | {"Stateful tests"}, tried  # these ask one operation after the other


@pytest.mark.nightly
def test_schemathesis_finds_nothing_with_tokens(guarded):
    """The same with a token; without one, or with another, nothing is answered that wants one."""
    found, _ = look(guarded, **AUTHORIZATION)
    assert found == []


def document(service):
    """Return the document; a service with a token gives it to nobody else."""
    with service.raw() as connection:
        answer = connection.ask(request("GET", "/openapi.json"))
        if answer.status == 401:
            answer = connection.ask(request("GET", "/openapi.json", **AUTHORIZATION))
        return answer.json()


def operations(found):
    return {each["operationId"]: each for path in found["paths"].values() for each in path.values()}


def test_examples(redis, tmp_path):
    """Each example is in the document, and a new service answers so."""
    token = known("all", TOKEN, "admin")
    with Service(redis.url, "--prefix", "examples", "--archive", tmp_path.as_uri(), settings=token) as service:
        documented, learnt = operations(document(service)), {}

        def answer(operation, body, name=FILTER):
            return ask(service, "POST", OPERATIONS[operation].path_of(name), body, TOKEN).json()

        posted = {name: each.example for name, each in DESCRIPTIONS.items() if OPERATIONS[name].method == "POST"}
        answer("create", posted["create"].body | SEED, "old")
        answer("create", {"capacity": 1000, "layout": "counting"}, "counting")
        answer("insert", posted["remove"].body, "counting")
        for operation in dict.fromkeys(("create", "unique", *posted)):
            body, expected = posted[operation]
            shown = documented[operation]
            assert shown["requestBody"]["content"]["application/json"]["example"] == body
            assert shown["responses"]["200"]["content"]["application/json"]["example"] == expected
            given = body | {name: learnt[name] for name in learnt.keys() & body.keys()}
            given |= SEED if operation == "create" else {}
            other = ("counting",) if operation == "remove" else ()
            found = answer(operation, given, *other)
            learnt |= {name: found[name] for name in ("uid", "begun", "size", "outstanding") if name in found}
            assert found == expected | ({"filter": "counting"} if other else {}) | {
                name: learnt[name] for name in learnt.keys() & expected.keys()
            }, operation


def test_all_operations_are_named(alone, guarded):
    """Each path and method is documented, under a name of its own; with tokens, that and where they are wanted."""
    for service in (alone, guarded):
        found = document(service)
        methods = {
            (path, method): each["operationId"]
            for path, part in found["paths"].items()
            for method, each in part.items()
        }
        assert methods == {(each.path, each.method.lower()): name for name, each in OPERATIONS.items()}
    token = [{"token": []}]
    wants = dict.fromkeys(OPERATIONS, token) | {"unique": [*token, {}], "healthz": [], "readyz": []}
    assert wants == {name: each["security"] for name, each in operations(document(guarded)).items()}
    assert document(guarded)["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert "securitySchemes" not in document(alone)["components"]


def test_all_error_codes_are_documented(alone):
    """Each error code is among those of an error, and with its status and meaning at an operation that gives it."""
    found = document(alone)
    assert sorted(ERROR_CODES) == found["components"]["schemas"]["Error"]["properties"]["error_code"]["enum"]
    described = {
        (int(status), text)
        for each in operations(found).values()
        for status, response in each["responses"].items()
        for text in response["description"].split("; `")
    }
    texts = {(status, "`" + text.lstrip("`")) for status, text in described}
    nowhere = {"bad_http", "head_too_large", "method_not_allowed", "not_found"}  # of what is not in the document
    wanted = {
        (int(meaning.status), f"`{code}`: {meaning.when}")
        for code, meaning in ERROR_CODES.items()
        if code not in nowhere
    }
    assert {(200, "`the answer")} | wanted == texts
