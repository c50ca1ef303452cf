"""A profile as JSON: versioned, and checked field by field when it is read. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from stream2llm.costs.curves import Curve, FitError
from stream2llm.costs.profile import CopyCosts, CostProfile, PrefillCosts, ProfileError, Source, SourceKind, Subject

FORMAT = "stream2llm cost profile"
VERSION = 1


def to_json(profile: CostProfile) -> str:
    """The profile as a JSON text; curves are lists of [tokens, seconds]."""
    return json.dumps(to_document(profile), indent=1)


def to_document(profile: CostProfile) -> dict[str, Any]:
    """The profile as a JSON object."""
    prefill = profile.prefill
    return {
        "format": FORMAT,
        "version": VERSION,
        "subject": asdict(profile.subject),
        "source": asdict(profile.source),
        "step_tokens": profile.step_tokens,
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "prefill": {
            "base": _points(prefill.base),
            "per_context_token": _points(prefill.per_context_token),
            "longest_context": prefill.longest_context,
            "error": asdict(prefill.error) if prefill.error else None,
        },
        "copy_out": _copy_document(profile.copy_out),
        "copy_in": _copy_document(profile.copy_in),
    }


def from_json(text: str) -> CostProfile:
    """The profile in a JSON text. Raises `ProfileError` with the path of the field that is wrong."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"the cost profile is not JSON: {error}") from error
    return from_document(document)


def from_document(document: Any) -> CostProfile:
    """The profile in a JSON object. Raises `ProfileError` with the path of the field that is wrong."""
    top = _Fields(document, "")
    if top.text("format") != FORMAT:
        raise ProfileError(f"format: expected {FORMAT!r}; this is no cost profile")
    if (version := top.count("version")) != VERSION:
        raise ProfileError(
            f"version: this release reads version {VERSION}, found {version}; measure again with `stream2llm profile`"
        )
    subject, source, prefill = top.object("subject"), top.object("source"), top.object("prefill")
    return CostProfile(
        subject=Subject(
            hardware=subject.text("hardware"),
            model=subject.text("model"),
            engine=subject.text("engine"),
            dtype=subject.text("dtype"),
            block_size=subject.count("block_size"),
        ),
        source=Source(_kind(source.text("kind")), source.text("text"), source.text("created")),
        step_tokens=top.count("step_tokens"),
        kv_bytes_per_token=top.count("kv_bytes_per_token"),
        prefill=PrefillCosts(
            base=prefill.curve("base"),
            per_context_token=prefill.curve("per_context_token"),
            longest_context=prefill.count("longest_context", least=0),
            error=prefill.error("error"),
        ),
        copy_out=_copy_costs(top.object("copy_out")),
        copy_in=_copy_costs(top.object("copy_in")),
    )


def _kind(text: str) -> SourceKind:
    try:
        return SourceKind(text)
    except ValueError:
        raise ProfileError(f"source.kind: expected one of {', '.join(SourceKind)}, found {text!r}") from None


def _copy_document(costs: CopyCosts) -> dict[str, Any]:
    return {"seconds": _points(costs.seconds), "error": asdict(costs.error) if costs.error else None}


def _copy_costs(fields: _Fields) -> CopyCosts:
    return CopyCosts(fields.curve("seconds"), fields.error("error"))


def _points(curve: Curve) -> list[list[float]]:
    return [list(point) for point in zip(curve.xs, curve.ys, strict=True)]


class _Fields:
    """A JSON object whose fields are read with their type; every complaint names the path."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise ProfileError(f"{path or 'the cost profile'}: expected a JSON object, found {_shown(value)}")
        self._values, self._path = value, path

    def object(self, name: str) -> _Fields:
        return _Fields(self._get(name), self._at(name))

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def count(self, name: str, least: int = 1) -> int:
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._wrong(name, f"a whole number from {least} up", value)
        return value

    def number(self, name: str) -> float:
        value = self._get(name)
        if not _is_number(value) or value < 0:
            raise self._wrong(name, "a number that is not negative", value)
        return float(value)

    def curve(self, name: str) -> Curve:
        value = self._get(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list of [tokens, seconds]", value)
        for place, point in enumerate(value):
            if not (isinstance(point, list) and len(point) == 2 and all(map(_is_number, point))):
                raise self._wrong(f"{name}[{place}]", "[tokens, seconds]", point)
        try:
            return Curve(tuple(float(x) for x, _ in value), tuple(float(y) for _, y in value))
        except ValueError as error:
            raise ProfileError(f"{self._at(name)}: {error}") from error

    def error(self, name: str) -> FitError | None:
        if self._get(name) is None:
            return None
        fields = self.object(name)
        return FitError(fields.number("median"), fields.number("worst"), fields.count("samples"))

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise ProfileError(f"{self._at(name)}: missing from the cost profile")
        return self._values[name]

    def _at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _wrong(self, name: str, expected: str, found: Any) -> ProfileError:
        return ProfileError(f"{self._at(name)}: expected {expected}, found {_shown(found)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    return repr(value)[:60]
