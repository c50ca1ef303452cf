"""Each refusal has its status, in vLLM's error format."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from pydantic import ValidationError
from vllm.exceptions import QueueOverflowError

from stream2llm.content import ContentError
from stream2llm.stream import StreamRefusedError
from stream2llm.vllm.endpoints.errors import ApiError, error_body
from stream2llm.vllm.endpoints.models import WriteRequest


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StreamRefusedError("unknown", "no such stream"), 404),
        (StreamRefusedError("exists", "taken"), 409),
        (StreamRefusedError("finished", "finished"), 409),
        (StreamRefusedError("conflict", "at version 3", 3), 409),
        (StreamRefusedError("too_long", "the limit is 4095"), 400),
        (StreamRefusedError("busy", "try again"), 503),
        (StreamRefusedError("disabled", "start the server with ..."), 503),
        (ContentError("kinds mixed"), 400),
        (ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "line too long"), 413),
        (QueueOverflowError(), 503),
    ],
)
def test_status_and_message(error: Exception, status: int) -> None:
    body = error_body(error).error
    assert (body.code, body.message) == (status, str(error))
    assert body.type


def test_a_malformed_body_is_described_field_by_field_without_its_values() -> None:
    with pytest.raises(ValidationError) as raised:
        WriteRequest.model_validate({"text": 1, "token_ids": ["secret\ud800"] * 100, "expected_version": -1})
    body = error_body(raised.value).error
    assert (body.code, body.param) == (422, "text")
    assert "text: Input should be a string" in body.message
    assert "token_ids.0" in body.message
    assert "and 97 more" in body.message
    assert "secret" not in body.message
