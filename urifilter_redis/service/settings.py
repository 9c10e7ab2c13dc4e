"""The settings of the service: flags beat the environment, which beats a TOML file."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from urifilter_redis.http_api import DEFAULT_PATH, DEFAULT_PORT
from urifilter_redis.protocol import config
from urifilter_redis.protocol.keys import DEFAULT_PREFIX, check_name, check_prefix
from urifilter_redis.service.tokens import Token
from urifilter_redis.storage.backends import open_backend
from urifilter_redis.transport.endpoints import check_url

__all__ = ["FilterSettings", "Limits", "ServiceSettings", "TokenSettings", "is_loopback", "load"]

#: The beginning of the environment's variables that are settings.
_PREFIX = "URIFILTER_"

#: Variables with this beginning that the command line, the library or the SDK reads.
_OTHERS = ("settings", "data_dir", "api_url", "api_token")

_STRICT = ConfigDict(extra="forbid", frozen=True)


def _no_truth(value: object) -> object:
    """Refuse true and false, which Python takes for numbers.

    Raises:
        ValueError: the value is true or false.
    """
    if isinstance(value, bool):
        raise ValueError("give a number, not true or false")  # noqa: TRY004 - pydantic tells of ValueErrors
    return value


def _checked_by(check: Callable[[str], object]) -> AfterValidator:
    """Return the validator of a text that ``check`` raises a ValueError about; an empty one is as good as none."""

    def checked(value: str | None) -> str | None:
        if value:
            check(value)
        return value or None

    return AfterValidator(checked)


Whole = Annotated[int, BeforeValidator(_no_truth)]
Number = Annotated[float, BeforeValidator(_no_truth)]


class Limits(BaseModel):
    """The most that a request may have; the service refuses more.

    Attributes:
        body: bytes of a request's body.
        items: items of a request.
        item: bytes of an item.
        seconds: the seconds in which a head, and then a body, must arrive.
        requests: requests of one token that one worker runs at once; more wait.
        wait: seconds for which a request may wait for others of its token.
        wrong_tokens: wrong tokens a minute of one address whose answers one worker does not hold back.

    Example:
        >>> Limits(items=500).items
        500
    """

    model_config = _STRICT

    body: Annotated[Whole, Field(ge=1024, le=1 << 30)] = 4 << 20
    items: Annotated[Whole, Field(ge=1, le=100_000)] = 10_000
    item: Annotated[Whole, Field(ge=1, le=1 << 24)] = 1 << 16
    seconds: Annotated[Number, Field(gt=0, le=3600)] = 10.0
    requests: Annotated[Whole, Field(ge=1, le=100_000)] = 100
    wait: Annotated[Number, Field(ge=0, le=3600)] = 5.0
    wrong_tokens: Annotated[Whole, Field(ge=1, le=1_000_000)] = 20


class TokenSettings(BaseModel):
    """An access token in the settings, as ``urifilter token new`` prints it.

    Attributes:
        name: the token's name in logs and metrics.
        digest: ``sha256:`` and 64 hex digits.
        filters: names of filters, or patterns with ``*`` and ``?``.
        access: ``read``, ``write`` (insert, too) or ``admin`` (make, rotate and drop filters, too).

    Example:
        >>> TokenSettings(name="crawlers", digest="sha256:" + "0" * 64, filters=("news*",)).access
        'read'
    """

    model_config = _STRICT

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    digest: str
    filters: tuple[str, ...] = ("*",)
    access: Literal["read", "write", "admin"] = "read"

    @model_validator(mode="after")
    def _check(self) -> TokenSettings:
        self.token()
        return self

    def token(self) -> Token:
        """Return the token in the form that the service uses."""
        return Token(self.name, self.digest, self.filters, self.access)


def _setting(name: str, kind: Any) -> Any:
    """Return pydantic's type for a setting of a filter, with its default."""
    if name == "rules":  # the text or path that the library takes, too, would be of the caller's machine
        kind = list[dict[str, Any]] | None
    default = next(each.default for each in fields(config.Settings) if each.name == name)
    checked = Annotated[kind, BeforeValidator(_no_truth)] if kind in {int, float, int | None} else kind
    return checked if default is MISSING else (checked, Field(default, repr=name != "seed"))


#: A model with a field for each of the library's settings, made from these so that none is forgotten.
_SETTINGS: Any = create_model(
    "_SETTINGS", **{name: _setting(name, kind) for name, kind in get_type_hints(config.Settings).items()}
)


class FilterSettings(_SETTINGS):  # type: ignore[misc]  # its base is made at run time
    """A filter that the service makes if it does not exist: the settings of ``UriFilter.create``.

    Attributes:
        large: whether it may leave Redis too little free memory.

    Example:
        >>> FilterSettings(capacity=10_000_000, retention="ring", slices=4, period="1w").settings().slices
        4
    """

    model_config = _STRICT

    large: bool = False

    @model_validator(mode="after")
    def _check(self) -> FilterSettings:
        self.settings()
        return self

    def settings(self) -> config.Settings:
        """Return the settings in the form that the library uses."""
        return config.Settings(**{each.name: getattr(self, each.name) for each in fields(config.Settings)})


class ServiceSettings(BaseSettings):
    """All settings of ``urifilter serve``; ``load`` makes one of flags, environment and file.

    Attributes:
        redis_url: the address of Redis; None: the embedded server.
        prefix: the beginning of all keys.
        archive: the address of the archive; None: there is none.
        timeout: seconds for which a call to Redis is repeated; None: 3, behind Sentinels and on a Redis Cluster 20.
        rotate: ``auto`` (requests that insert turn filters when a period is over) or ``never`` (worker and cron do).
        host: the address to listen at; any but this machine alone wants tokens.
        port: the port to listen at; 0: any free one.
        path: the path of the older interface, which inserts URIs and answers the new ones.
        workers: the number of processes.
        log_format: ``text`` or ``json``.
        log_requests: whether each request gets a line in the log.
        trusted_proxies: networks of the proxies whose X-Forwarded-For is believed; they may ask a service without
            tokens.
        limits: the most that a request may have.
        tokens: the access tokens; none: this machine alone may ask.
        filters: by name, the filters that the service makes if they do not exist.

    Example:
        >>> ServiceSettings(port=8080).host
        '127.0.0.1'
    """

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_prefix=_PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )

    redis_url: Annotated[str | None, _checked_by(check_url)] = None
    prefix: Annotated[str, AfterValidator(check_prefix)] = DEFAULT_PREFIX
    archive: Annotated[str | None, _checked_by(open_backend)] = None
    timeout: Annotated[Number, Field(gt=0, le=3600)] | None = None
    rotate: Literal["auto", "never"] = "auto"
    host: str = "127.0.0.1"
    port: Annotated[Whole, Field(ge=0, le=65535)] = DEFAULT_PORT
    path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)+$")] = DEFAULT_PATH
    workers: Annotated[Whole, Field(ge=1, le=256)] = 1
    log_format: Literal["text", "json"] = "text"
    log_requests: bool = False
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    limits: Limits = Limits()
    tokens: tuple[TokenSettings, ...] = ()
    filters: dict[str, FilterSettings] = {}

    @field_validator("filters")
    @classmethod
    def _check_names(cls, value: dict[str, FilterSettings]) -> dict[str, FilterSettings]:
        for name in value:
            check_name(name)
        return value

    @model_validator(mode="after")
    def _check_open(self) -> ServiceSettings:
        names = [token.name for token in self.tokens]
        if len(names) != len(set(names)):
            raise ValueError("tokens: each has a name of its own")
        if not self.tokens and not is_loopback(self.host):
            text = f"host {self.host} is not this machine alone, so anybody may ask"
            raise ValueError(f"{text}: add tokens (`urifilter token new NAME`) or leave host at 127.0.0.1")
        return self


def is_loopback(host: str) -> bool:
    """Whether an address belongs to this machine alone; of names only ``localhost`` does."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(flags: Mapping[str, Any], file: Path | None = None) -> ServiceSettings:
    """Gather the settings from flags, the environment and a file.

    Args:
        flags: the settings of the command line, by their names.
        file: a TOML file; None: there is none.

    Returns:
        The settings, checked.

    Raises:
        ValueError: some settings are wrong; the message has a line for each, with its name and the allowed values.
        OSError: the file cannot be read.

    Example:
        >>> load({"port": 8080}).port
        8080
    """
    if file is not None:
        file.open("rb").close()  # pydantic-settings takes a missing file for an empty one

    class Sources(ServiceSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            *given: PydanticBaseSettingsSource,
            **named: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            given = (*given, named["init_settings"], named["env_settings"])
            return given if file is None else (*given, TomlConfigSettingsSource(settings_cls, file))

    where = f" (flags, environment, {file})" if file else ""
    if unknown := _unknown_variables():
        there = ", ".join(sorted(f"{_PREFIX}{name.upper()}" for name in ServiceSettings.model_fields))
        lines = [f"  {name}: there is no such setting; there are {there}" for name in unknown]
        raise ValueError("\n".join(["wrong settings (environment):", *lines]))
    try:
        found = Sources(**flags)
    except ValidationError as error:
        lines = [_line(each["loc"], each["type"], each["msg"]) for each in error.errors(include_input=False)]
        raise ValueError("\n".join([f"wrong settings{where}:", *lines])) from None
    except (SettingsError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the settings{where} cannot be read: {error}") from error
    return ServiceSettings.model_construct(**{name: getattr(found, name) for name in ServiceSettings.model_fields})


def _unknown_variables() -> list[str]:
    """Return the variables of the environment that look like settings but are not, and that nothing else reads."""
    known = {*ServiceSettings.model_fields, *_OTHERS}
    ours = (name for name, value in os.environ.items() if value and name.upper().startswith(_PREFIX))
    return sorted(name for name in ours if name[len(_PREFIX) :].lower().partition("__")[0] not in known)


def _line(place: tuple[int | str, ...], kind: str, message: str) -> str:
    """Return one line about one wrong setting."""
    if kind == "extra_forbidden":
        *above, name = place
        message = f"there is no setting {name}; there are {', '.join(_names(above))}"
    named = ".".join(map(str, place)) or "settings"
    return f"  {named}: {message.removeprefix('Value error, ')}"


def _names(place: Sequence[int | str]) -> list[str]:
    """Return the names of the settings in a table of the file."""
    parts: dict[str, type[BaseModel]] = {"limits": Limits, "tokens": TokenSettings, "filters": FilterSettings}
    model = parts[str(place[0])] if place else ServiceSettings
    return sorted(model.model_fields)
