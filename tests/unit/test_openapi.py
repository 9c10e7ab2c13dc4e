"""The description of the API: one set of names below /v1, with the older interface apart from it; and its pages."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from urifilter_redis.http_api import DEFAULT_PATH, OPERATIONS
from urifilter_redis.service import openapi
from urifilter_redis.service.bodies import PageQuery
from urifilter_redis.service.descriptions import DESCRIPTIONS
from urifilter_redis.service.settings import FilterSettings, ServiceSettings

OLDER = ("filter_typeid", "URI_list")
FULL = {
    "error_rate": 1e-3,
    "layout": "classic",
    "shards": 2,
    "normalize": "loose",
    "rules": [],
    "hash": "md5",
    "slices": 3,
    "period": "1d",
    "write": "newest",
    "expire_after": "last-seen",
    "period_capacity": 500,
    "large": True,
}


@pytest.fixture(scope="module")
def document():
    defaults = {name: field.get_default() for name, field in ServiceSettings.model_fields.items()}
    return openapi.document(ServiceSettings.model_construct(**defaults))


def operations(document):
    return {
        (method, path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def named(document, part):
    """Return the names of all schemas that a part of the document leads to."""
    found, waiting = set(), [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            name = part.get("$ref", "").rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(document["components"]["schemas"][name])
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return found


def test_each_operation_is_described_once(document):
    """Both halves have the same names, and each is in the document as they say; a POST has an example."""
    assert DESCRIPTIONS.keys() == OPERATIONS.keys()
    found = {each["operationId"]: (where, each) for where, each in operations(document).items()}
    assert found.keys() == OPERATIONS.keys()
    for name, ((method, path), each) in found.items():
        operation, described = OPERATIONS[name], DESCRIPTIONS[name]
        assert (method.upper(), path, each["tags"]) == (operation.method, operation.path, [operation.tag])
        assert each["summary"] == described.summary
        assert ("requestBody" in each) == (method in {"post", "put"})
        assert (described.example is None) == (method == "get")
        assert any(part["name"] == "Idempotency-Key" for part in each.get("parameters", ())) == operation.keyed
        answers = each["responses"]["200"]["content"].get("application/json", {}).get("schema", {}).get("$ref", "")
        assert answers.rpartition("/")[2] == getattr(described.answer, "__name__", "")


def test_v1_has_one_set_of_names(document):
    """The names of the older interface stand in its operation alone, which is deprecated, under a tag of its own."""
    for (_, path), operation in operations(document).items():
        schemas = [document["components"]["schemas"][name] for name in named(document, operation)]
        text = path + json.dumps([operation, *schemas])
        is_older = operation["tags"] == ["older interface"]
        assert is_older == (path == DEFAULT_PATH) == any(name in text for name in OLDER), path
        assert is_older == operation.get("deprecated", False)


def test_every_operation_has_a_tag_and_the_document_a_server(document):
    """Each tag is described, and stands at an operation."""
    used = [operation["tags"] for operation in operations(document).values()]
    assert all(len(tags) == 1 for tags in used)
    assert {each["name"] for each in document["tags"]} == {tag for (tag,) in used}
    assert all(each["description"] for each in document["tags"])
    assert [each["url"] for each in document["servers"]] == ["."]


def test_bodies_have_names(document):
    """No body of a request or an answer is described where it stands: all are among the components."""
    for where, operation in operations(document).items():
        bodies = [operation["requestBody"]] if "requestBody" in operation else []
        for each in (*bodies, *operation["responses"].values()):
            for kind, content in each.get("content", {}).items():
                assert kind == "text/plain" or content["schema"].keys() == {"$ref"}, where


def test_what_an_age_of_minus_1_means_is_said(document):
    """In each answer that has ages."""
    schemas = document["components"]["schemas"]
    said = {
        name: each["properties"]["ages"]["description"]
        for name, each in schemas.items()
        if "ages" in each.get("properties", ()) and "error_code" not in each["properties"]
    }
    assert said.keys() == {"Inserted", "Found", "Claimed", "Committed"}
    assert [name for name, text in said.items() if "-1: " not in text] == []


def accepts(settings):
    try:
        FilterSettings(**settings)
    except ValidationError:
        return False
    return True


def test_create_says_which_settings_go_with_which_retention(document):
    """Each setting that a retention's schema has is accepted, each that it lacks refused; so is each of its values."""
    schemas = document["components"]["schemas"]
    mapping = schemas["CreateRequest"]["discriminator"]["mapping"]
    assert [{"$ref": ref} for ref in mapping.values()] == schemas["CreateRequest"]["oneOf"]
    assert list(mapping) == ["forever", "growing", "ring", "rolling"]
    for retention, ref in mapping.items():
        schema = schemas[ref.rpartition("/")[2]]
        assert schema["properties"]["retention"]["const"] == retention
        needed = {name: FULL[name] for name in FULL.keys() & schema["required"]}
        given = {"capacity": 1000, "retention": retention} | needed
        assert accepts(given)
        assert schema["properties"].keys() - FULL.keys() == {"capacity", "retention", "seed"}
        for name, value in FULL.items():
            assert accepts(given | {name: value}) == (name in schema["properties"]), (retention, name)
        for name in schema["required"]:
            assert not accepts({other: each for other, each in given.items() if other != name}) or name == "retention"
        for name, field in schema["properties"].items():
            bounds = [(field[each], by) for each, by in (("minimum", -1), ("maximum", 1)) if each in field]
            good = [*field.get("enum", ()), *(bound for bound, _ in bounds)]
            bad = ["unheard of"] if "enum" in field else [bound + by for bound, by in bounds]
            told = {str(value): accepts(given | {name: value}) for value in (*good, *bad)}
            assert told == {str(value): value in good for value in (*good, *bad)}, (retention, name)
    assert not accepts({"capacity": 1000, "retention": "growing", "layout": "counting"})


def test_what_is_refused_is_not_described(document):
    """A capacity of nothing, and a rotation that names no epoch and is no dry run."""
    schemas = document["components"]["schemas"]
    for retention in ("Forever", "Growing", "Ring", "Rolling"):
        fields = schemas[f"Create{retention}"]["properties"]
        assert fields["capacity"]["minimum"] == 1
        assert (fields["error_rate"]["minimum"], fields["error_rate"]["maximum"]) == (1e-9, 0.5)
        assert (fields["shards"]["minimum"], fields["shards"]["maximum"]) == (1, 4096)
    assert schemas["CreateRing"]["properties"]["period_capacity"]["minimum"] == 1
    allowed = schemas["RotateRequest"]["anyOf"]
    assert [each["required"] for each in allowed] == [["expected_epoch"], ["dry_run"]]
    assert [*allowed[0]["properties"].values(), *allowed[1]["properties"].values()] == [
        {"type": "integer"},
        {"const": True},
    ]


def test_a_page_of_a_list(document):
    """Lists say their limit, and where to go on."""
    for path in ("/v1/filters", "/v1/overview"):
        limit, after = document["paths"][path]["get"]["parameters"]
        assert (limit["name"], limit["schema"]["maximum"], limit["schema"]["default"]) == ("limit", 1000, 1000)
        assert (after["name"], after["required"]) == ("after", False)
    for name in ("in_flight", "dead_letters"):
        limit, after = document["paths"][f"/v1/filters/{{filter}}/{name}"]["get"]["parameters"][-2:]
        assert (limit["name"], limit["schema"]["maximum"], limit["schema"]["default"]) == ("limit", 100, 100)
        assert (after["name"], after["required"]) == ("after", False)


def test_pages_of_names():
    """Each name is in one page; the last page has no next."""
    found, query = [], PageQuery(limit=2)
    while True:
        page, more = query.page_of(["d", "b", "c", "a"])
        found.append(page)
        if not more:
            break
        query = PageQuery(limit=2, after=more["next"])
    assert found == [["a", "b"], ["c", "d"]]
