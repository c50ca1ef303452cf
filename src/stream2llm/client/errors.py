"""What can go wrong between a client and a server, as exception classes, and how a response maps to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx


class Stream2LLMError(Exception):
    """Base class of the client's exceptions.

    Attributes: `message`; `status`, the HTTP status, None when no answer came; `param`, the field of the request that
    the server names, where it names one; `body`, the parsed body of the answer, where there is one.
    """

    def __init__(self, message: str, *, status: int | None = None, param: str | None = None, body: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.body = body


class InvalidRequest(Stream2LLMError):
    """The request is refused as it is (400, 404, 413, 422): sending it again would not help."""


class ContextTooLong(InvalidRequest):
    """The prompt is longer than the model, or the server's KV cache, allows; the message gives the limit."""


class ModelNotFound(InvalidRequest):
    """The server does not serve this model."""


class AuthenticationError(Stream2LLMError):
    """The API key is missing, wrong (401) or not allowed to do this (403)."""


class StreamNotFound(Stream2LLMError):
    """The stream was never opened, or it was closed, or it expired (404)."""


class StreamConflict(Stream2LLMError):
    """Somebody else wrote to the stream, or its id is taken (409).

    `version` is the stream's current version on the server, where it is known.
    """

    def __init__(self, message: str, *, version: int | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.version = version


class StreamFinished(Stream2LLMError):
    """The stream has been completed or closed: open a new one for the next prompt."""


class ServerUnavailable(Stream2LLMError):
    """No answer, a server error or an overload, and retries (where allowed) did not help.

    The stream stays usable: the next call brings the server to the content the client holds.
    """


class AnswerInterrupted(Stream2LLMError):
    """The answer broke off after its first bytes; it is not asked for again by itself.

    `text` is what had arrived of the first choice.
    """

    def __init__(self, message: str, *, text: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.text = text


class PrefixWarmingWarning(UserWarning):
    """The server has no context streams; the client warms its prefix cache with plain requests instead."""


_TOO_LONG_PARAMS = frozenset({"input_tokens", "input_text"})
_TOO_LONG_PHRASES = ("maximum context length", "maximum model length", "max-model-len", "kv cache")


def error_from(response: httpx.Response) -> Stream2LLMError:
    """The exception that a response with an error status means; its body must have been read."""
    return error_from_body(response.status_code, _body_of(response))


def error_from_body(status: int, body: Any) -> Stream2LLMError:
    """The exception for an error body in the OpenAI format, FastAPI's, or any other."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    fields: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error}
    text = fields.get("message") or fields.get("detail") or httpx.codes.get_reason_phrase(status)
    message = text if isinstance(text, str) else str(text)
    param = fields.get("param") if isinstance(fields.get("param"), str) else None
    kind = _class_of(status, message, param)
    return kind(message, status=status, param=param, body=body)


def _class_of(status: int, message: str, param: str | None) -> type[Stream2LLMError]:
    if status == 429 or status >= 500:
        return ServerUnavailable
    if status in (401, 403):
        return AuthenticationError
    if status == 404:
        return ModelNotFound if param == "model" or message.startswith("The model") else StreamNotFound
    if status == 409:
        return StreamFinished if "finished" in message.lower() else StreamConflict
    if status in (400, 413) and (
        param in _TOO_LONG_PARAMS or any(phrase in message.lower() for phrase in _TOO_LONG_PHRASES)
    ):
        return ContextTooLong
    return InvalidRequest


def _body_of(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
