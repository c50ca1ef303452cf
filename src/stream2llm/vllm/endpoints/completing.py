"""Finishing a stream: a stock request made of the stream's content and the body, answered by the stock endpoint."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

from fastapi import Request, Response
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from stream2llm import content
from stream2llm.content import Content, Messages, Text, TokenIds
from stream2llm.stream import StreamRefusedError
from stream2llm.vllm.endpoints.errors import ApiError
from stream2llm.vllm.endpoints.rendering import Settings
from stream2llm.vllm.endpoints.streams import ContextStreams

Endpoint = Literal["completions", "chat/completions"]
Body = dict[str, Any]


async def complete(
    streams: ContextStreams, stream_id: str, endpoint: Endpoint | None, body: Body, raw_request: Request
) -> Response | None:
    """The stock answer to the stream's content and `body`, which finishes the stream.

    `endpoint` None: the one that fits the content. `raw_request` must have been read to its end: what it still
    receives is taken for the client's departure. Raises `StreamRefusedError` (unknown, finished), `ApiError`, and
    pydantic's `ValidationError`; the stream then stays open.
    """
    try:
        view = await streams.writer(stream_id).settled()
    except StreamRefusedError:
        streams.forget(stream_id)
        raise
    if endpoint is None:
        endpoint = "chat/completions" if isinstance(view.content, Messages) else "completions"
    whole = whole_body(stream_id, endpoint, view.content, view.settings, body)
    if endpoint == "completions":
        response = await create_completion(CompletionRequest.model_validate(whole), raw_request=raw_request)
    else:
        response = await create_chat_completion(ChatCompletionRequest.model_validate(whole), raw_request=raw_request)
    if succeeded(response):
        streams.forget(stream_id)
    return response


def succeeded(response: Response | None) -> bool:
    """Whether the stock endpoint has taken the request. It returns None when the client has gone."""
    return response is not None and response.status_code < HTTPStatus.BAD_REQUEST


def whole_body(stream_id: str, endpoint: Endpoint, held: Content | None, settings: Settings, body: Body) -> Body:
    """The stock body for the whole prompt. Raises `ApiError` (400) where stream and endpoint do not go together."""
    if body.get("use_beam_search"):
        message = "Beam search cannot finish a stream: send the whole prompt to the stock endpoint instead."
        raise ApiError(HTTPStatus.BAD_REQUEST, message, "use_beam_search")
    given = {name: value for name, value in body.items() if value is not None}
    whole = {**_defaults(endpoint, settings), **given}
    xargs = whole.get("vllm_xargs", {})
    if isinstance(xargs, dict):
        whole["vllm_xargs"] = {**xargs, "context_stream": stream_id}
    if endpoint == "completions":
        whole["prompt"] = _whole_prompt(held, body.get("prompt"))
    else:
        whole["messages"] = _whole_messages(held, body.get("messages", []))
    return whole


def _defaults(endpoint: Endpoint, settings: Settings) -> Body:
    """What the stream was opened with, as far as the endpoint knows it."""
    names = ["model", "cache_salt", "priority"]
    names += ["add_special_tokens"] if endpoint == "completions" else ["chat_template_kwargs", "tools"]
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def _whole_prompt(held: Content | None, rest: Any) -> Any:
    match held, rest:
        case Messages(), _:
            raise _refusal("prompt", "holds messages: finish it with /chat/completions and the last messages")
        case None, _:
            return "" if rest is None else rest
        case Text(), None | str():
            whole = content.append(held, content.text(rest or ""))
            assert isinstance(whole, Text)
            return whole.closed
        case TokenIds(), None | [] | [int(), *_]:
            return [*held.ids, *(rest or [])]
        case Text(), _:
            raise _refusal("prompt", "holds text: give one prompt as text, which is the rest of it")
    raise _refusal("prompt", "holds token ids: give one prompt as token ids, which are the rest of it")


def _whole_messages(held: Content | None, last: Any) -> Any:
    if not isinstance(last, list):
        return last  # the stock endpoint's validation says what is wrong
    match held:
        case None:
            return last
        case Messages():
            # Once the list goes on, the last message's open end is closed.
            return [*held.closed, *last]
    kind = "text" if isinstance(held, Text) else "token ids"
    raise _refusal("messages", f"holds {kind}: finish it with /completions and a prompt, or PUT messages instead")


def _refusal(param: str, message: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, f"The stream {message}.", param)
