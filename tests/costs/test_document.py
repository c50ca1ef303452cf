"""A profile goes through JSON unchanged, and a wrong document is refused with the path of the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from costs_profiles import profile
from stream2llm.costs import ProfileError, paper_profile
from stream2llm.costs.document import from_document, from_json, to_document, to_json


@pytest.mark.parametrize("original", [profile(), paper_profile("2xh200")], ids=["measured", "estimate"])
def test_it_goes_through_json_unchanged(original: Any) -> None:
    assert from_json(to_json(original)) == original


def _changed(path: str, value: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_json(profile()))
    *parents, last = path.split(".")
    inner = document
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("format", "something", "format: .*no cost profile"),
        ("version", 2, "version: this release reads version 1, found 2"),
        ("subject", [], r"subject: expected a JSON object, found \[\]"),
        ("subject.hardware", 7, "subject.hardware: expected a text, found 7"),
        ("subject.block_size", 0, "subject.block_size: expected a whole number from 1 up, found 0"),
        ("subject.block_size", True, "subject.block_size: .*found True"),
        ("source.kind", "guess", "source.kind: expected one of measured, estimate, found 'guess'"),
        ("step_tokens", "2048", "step_tokens: expected a whole number"),
        ("kv_bytes_per_token", 1.5, "kv_bytes_per_token: expected a whole number"),
        ("prefill.base", "steep", "prefill.base: expected a list"),
        ("prefill.base", [[1, 2], [3]], r"prefill.base\[1\]: expected \[tokens, seconds\]"),
        ("prefill.base", [[1, 2], [3, float("nan")]], r"prefill.base\[1\]"),
        ("prefill.per_context_token", [[1, 2], [3, 1]], "prefill.per_context_token: .*must not fall"),
        ("prefill.longest_context", -1, "prefill.longest_context: expected a whole number from 0 up"),
        ("prefill.error", {"median": -1, "worst": 0, "samples": 1}, "prefill.error.median: .*not negative"),
        ("copy_out.seconds", [[1, 1]], "copy_out.seconds: .*two points"),
        ("copy_in", None, "copy_in: expected a JSON object, found None"),
    ],
)
def test_a_wrong_field_is_named(path: str, value: Any, complaint: str) -> None:
    with pytest.raises(ProfileError, match=complaint):
        from_document(_changed(path, value))


def _paths(document: dict[str, Any], before: str = "") -> list[str]:
    paths = []
    for name, value in document.items():
        paths.append(before + name)
        if isinstance(value, dict):
            paths += _paths(value, f"{before}{name}.")
    return paths


@pytest.mark.parametrize("path", _paths(to_document(profile())))
def test_a_missing_field_is_named(path: str) -> None:
    document: dict[str, Any] = to_document(profile())
    *parents, last = path.split(".")
    inner = document
    for name in parents:
        inner = inner[name]
    del inner[last]
    with pytest.raises(ProfileError, match=f"^{path}: missing"):
        from_document(document)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"profile"'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match="the cost profile"):
        from_json(text)
