"""Tables of the reference, made from the code, so that each fact stands once."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge, Histogram

import urifilter_redis
from urifilter_redis import errors
from urifilter_redis.bloom.retention import Shape
from urifilter_redis.http_api import ERROR_CODES
from urifilter_redis.service import metrics as service_metrics
from urifilter_redis.service import openapi
from urifilter_redis.service.metrics import Gauges, UsageGauges
from urifilter_redis.service.settings import FilterSettings, Limits, ServiceSettings, TokenSettings
from urifilter_redis.service.usage import Used

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

#: The prefix of the service's variables.
_PREFIX = ServiceSettings.model_config["env_prefix"]

#: What the service counts or tells itself.
_METRICS = (Counter, Gauge, Histogram)

#: Limits of a number in pydantic's words, and as a reader knows them.
_BOUNDS = {"ge": "from {}", "gt": "over {}", "le": "to {}"}


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    named = list(head)
    lines = [named, ["---"] * len(named), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_markdown(text: str) -> str:
    """Return a docstring's text: code in Markdown has single backticks."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def _entries(documented: object, section: str) -> dict[str, str]:
    """Return the entries of a section (``Args``, ``Attributes``) of a docstring, by name."""
    _, _, rest = (inspect.getdoc(documented) or "").partition(f"{section}:\n")
    lines = re.match(r"(?:    .*\n?|\n(?=    ))*", rest)
    found = re.findall(r"^    (\w+): (.*\n?(?:     .*\n?)*)", lines[0] if lines else "", re.MULTILINE)
    return {name: _in_markdown(text) for name, text in found}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def python_errors() -> str:
    """The errors of the library, each with the first sentence of its docstring."""
    kinds = (getattr(errors, name) for name in errors.__all__)
    rows = []
    for kind in kinds:
        first = _in_markdown((inspect.getdoc(kind) or "").split("\n\n")[0])
        above = kind.__mro__[1].__name__
        rows.append((f"{{py:exc}}`{kind.__name__} <urifilter_redis.errors.{kind.__name__}>`", f"`{above}`", first))
    return _table(("error", "is a", "when"), rows)


def error_codes() -> str:
    """The error codes of the service, by status."""
    codes = sorted(ERROR_CODES.items(), key=lambda each: int(each[1].status))
    rows = ((int(meaning.status), f"`{code}`", meaning.when) for code, meaning in codes)
    return _table(("status", "`error_code`", "when"), rows)


def _document() -> dict[str, Any]:
    defaults = {name: field.get_default() for name, field in ServiceSettings.model_fields.items()}
    return openapi.document(ServiceSettings.model_construct(**defaults))


def _name_of(schema: dict[str, Any]) -> str:
    """Return the name of a schema that is referred to; empty if it is not."""
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _body_of(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    return _name_of(content.get("application/json", {}).get("schema", {}))


def endpoints() -> str:
    """The endpoints of the service, without those of the older interface."""
    rows, document = [], _document()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation.get("deprecated"):
                continue
            content = operation["responses"]["200"]["content"]
            answer = _name_of(content.get("application/json", {}).get("schema", {}))
            body = document["components"]["schemas"].get(_body_of(operation), {})
            names = [*body.get("properties", {}), *(["[settings](#actions)"] if "oneOf" in body else [])]
            names += [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            fields = ", ".join(name if name.startswith("[") else f"`{name}`" for name in names)
            link = f"[`{answer}`](http-answers.md#{answer.lower()})" if answer else "text"
            rows.append((f"`{method.upper()}` `{path}`", operation["summary"], fields, link))
    return _table(("request", "does", "fields of the body or query", "answer"), rows)


def _kind(schema: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in schema:
        return f"`{_name_of(schema)}`"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"object of {_kind(values)}" if isinstance(values, dict) else "object"
    return str(schema.get("type", "any JSON value"))


def answers() -> str:
    """The answers of the service: a heading and the fields of each."""
    document = _document()
    asked = {_body_of(each) for methods in document["paths"].values() for each in methods.values()}
    parts = []
    for name, schema in document["components"]["schemas"].items():
        if name in asked or name.startswith("Create") or "properties" not in schema:
            continue
        text = _in_markdown(schema.get("description", "").split("\n\n")[0].partition("Attributes:")[0])
        told = _told(name)
        rows = (
            (f"`{field}`", _kind(each), _capital(each.get("description") or told.get(field, "")))
            for field, each in schema["properties"].items()
        )
        parts.append(f"## {name}\n\n{text}\n\n{_table(('field', 'type', 'meaning'), rows)}")
    return "\n".join(parts)


def _told(name: str) -> dict[str, str]:
    """Return the meanings of the attributes of a public class, and of those that it inherits."""
    kinds = reversed(getattr(urifilter_redis, name, object).__mro__)
    return {field: text for kind in kinds for field, text in _entries(kind, "Attributes").items()}


def metrics() -> str:
    """The metrics of the service, and then those of its filters."""
    counts = (value for value in vars(service_metrics).values() if isinstance(value, _METRICS))
    gauges = Gauges({"news": (True, {})}, redis=1, archive=1).collect()
    rows = []
    of_tokens = UsageGauges(Used(), ()).collect()
    for each in (*counts, *gauges, *of_tokens):
        labels = ", ".join(f"`{label}`" for label in each._labelnames)  # noqa: SLF001 - no public name has them
        family = each.describe()[0] if isinstance(each, _METRICS) else each
        ending = "_total" if family.type == "counter" else ""  # as it is scraped
        rows.append((f"`{family.name}{ending}`", family.type, labels, family.documentation))
    return _table(("metric", "type", "labels", "meaning"), rows)


def shape() -> str:
    """The attributes that a filter's answers inherit."""
    told = _entries(Shape, "Attributes")
    return _table(("attribute", "meaning"), ((f"`{name}`", _capital(text)) for name, text in told.items()))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Limits):
        return "[limits](#limits)"
    shown = value if isinstance(value, str) else json.dumps(value)
    return "none" if value in (None, (), {}) else f"`{shown}`"


def _bounds(field: FieldInfo) -> str:
    found = [
        words.format(f"{getattr(each, name):,}")
        for each in field.metadata
        for name, words in _BOUNDS.items()
        if hasattr(each, name)
    ]
    return f" {_capital(' '.join(found))}." if found else ""


def _settings_of(model: type[BaseModel], told: dict[str, str], variable: str | None) -> str:
    rows = []
    for name, field in model.model_fields.items():
        text = _capital(told.get(name) or field.description or "")
        in_environment = "" if variable is None else f" `{variable}{name.upper()}`"
        rows.append((f"`{name}`{in_environment}", _default(field), f"{text}{_bounds(field)}"))
    return _table(("setting" if variable is None else "setting, variable", "default", "meaning"), rows)


def _service_settings() -> str:
    return _settings_of(ServiceSettings, _entries(ServiceSettings, "Attributes"), _PREFIX)


def _limits() -> str:
    return _settings_of(Limits, _entries(Limits, "Attributes"), f"{_PREFIX}LIMITS__")


def _tokens() -> str:
    return _settings_of(TokenSettings, _entries(TokenSettings, "Attributes"), None)


def _filters() -> str:
    told = _entries(urifilter_redis.UriFilter.create, "Args") | _entries(FilterSettings, "Attributes")
    return _settings_of(FilterSettings, told, None)


#: The text of each table, by the name that pages call it by.
TABLES: dict[str, Callable[[], str]] = {
    "answers": answers,
    "endpoints": endpoints,
    "error-codes": error_codes,
    "metrics": metrics,
    "python-errors": python_errors,
    "settings": _service_settings,
    "settings-filters": _filters,
    "settings-limits": _limits,
    "settings-tokens": _tokens,
    "shape": shape,
}
