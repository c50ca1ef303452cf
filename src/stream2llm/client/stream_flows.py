"""The life of a context stream as flows: open, write, complete, close, whatever the network does.

How a write stays exactly-once: every write carries the version it was made for, so a server applies it at most once.
When an answer was lost and the repeated write is refused with 409, the stream is read: if it is one version further
and holds what the write makes of it, the write had arrived. When the server has lost the stream, it is opened again
with all that the client holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import httpx

from stream2llm.client.answers import Ack, ack_from, ack_of
from stream2llm.client.content import Endpoint, appended, closed, fields_of, whole_body
from stream2llm.client.errors import (
    InvalidRequest,
    ServerUnavailable,
    Stream2LLMError,
    StreamConflict,
    StreamFinished,
    StreamNotFound,
    error_from,
)
from stream2llm.client.flow import Flow, Send
from stream2llm.client.retry import Exchange, RetryPolicy, exchange
from stream2llm.content import Content

ROUTES = "/v1/context_streams"
_ANSWERS_OF_A_SERVER_WITHOUT_THE_ROUTE = (404, 405, 501)
# What of the options given at opening a stock request knows too, as the server fills them in.
_STOCK_OPTIONS: Mapping[Endpoint, tuple[str, ...]] = {
    "completions": ("model", "cache_salt", "priority", "add_special_tokens"),
    "chat/completions": ("model", "cache_salt", "priority", "chat_template_kwargs", "tools"),
}

Write = Literal["append", "replace"]


@dataclass(frozen=True, slots=True)
class Held:
    """What the client holds of one stream.

    `options` are the fields given at opening, `version` is the server's. `adrift`: an earlier write was given up with
    its fate unknown, so the server's content may differ from `content`. `warming`: the server has no context streams.
    """

    id: str
    options: Mapping[str, Any]
    content: Content | None
    version: int = 0
    adrift: bool = False
    warming: bool = False

    @property
    def path(self) -> str:
        return f"{ROUTES}/{self.id}"


def new_id() -> str:
    """An unguessable id (128 random bits); chosen by the client, so that opening can be repeated safely."""
    return "cs_" + secrets.token_hex(16)


def open_stream(held: Held, policy: RetryPolicy, *, again: bool = False) -> Flow[tuple[Held, Ack]]:
    """Open a stream with the content held; on a server without context streams, start warming instead."""
    if held.warming:
        return (yield from _start_warming(held, policy))
    body = {"id": held.id, **held.options, **fields_of(held.content)}
    sent = yield from exchange(Send("POST", ROUTES, body), policy)
    if sent.response.is_success:
        return _acknowledged(held, ack_from(sent.response, reopened=again))
    if sent.response.status_code == 409:
        return (yield from _settle(held, sent, version=_first_version(held), policy=policy, again=again))
    if sent.response.status_code in _ANSWERS_OF_A_SERVER_WITHOUT_THE_ROUTE:
        listing = yield from exchange(Send("GET", ROUTES), policy)
        if listing.response.status_code == 404:
            return (yield from _start_warming(held, policy))
    raise error_from(sent.response)


def write(held: Held, how: Write, content: Content, policy: RetryPolicy) -> Flow[tuple[Held, Ack]]:
    """Append to the content or replace it."""
    after = replace(held, content=appended(held.content, content) if how == "append" else content)
    if held.warming:
        return _warmed(replace(after, version=held.version + 1))
    if held.adrift:
        return (yield from restore(after, policy))
    body = {**fields_of(content), "expected_version": held.version}
    request = Send("POST", f"{held.path}/append", body) if how == "append" else Send("PUT", held.path, body)
    sent = yield from exchange(request, policy)
    if sent.response.is_success:
        return _acknowledged(after, ack_from(sent.response))
    if sent.response.status_code == 409:
        return (yield from _settle(after, sent, version=held.version + 1, policy=policy))
    if _is_lost(sent.response):
        return (yield from _open_again(after, policy, uncertain=sent.uncertain))
    raise error_from(sent.response)


def restore(held: Held, policy: RetryPolicy) -> Flow[tuple[Held, Ack]]:
    """Bring the server to the content held, whatever it holds.

    It is written even where it is there already: a write given up earlier may still be on its way, and the new version
    makes it come too late.
    """
    if held.content is None:
        return (yield from _open_again(held, policy, uncertain=True))
    for _ in range(policy.retries + 1):
        read = yield from exchange(Send("GET", held.path), policy)
        if _is_lost(read.response):
            return (yield from _open_again(held, policy, uncertain=True))
        if not read.response.is_success:
            raise error_from(read.response)
        current = ack_from(read.response)
        if current.state == "finished":  # by an earlier completion, whose answer was lost
            return (yield from _open_again(held, policy, uncertain=True))
        body = {**fields_of(held.content), "expected_version": current.version}
        sent = yield from exchange(Send("PUT", held.path, body), policy)
        if sent.response.is_success:
            return _acknowledged(held, ack_from(sent.response))
        if sent.response.status_code not in (404, 409):
            raise error_from(sent.response)
    raise ServerUnavailable(f"stream {held.id} is being changed by somebody else all the time", status=409)


def complete(
    held: Held, endpoint: Endpoint, body: Mapping[str, Any], policy: RetryPolicy
) -> Flow[tuple[Held, httpx.Response]]:
    """Finish the stream with a stock request; the response has status 200, and is unread when the body asks to stream.

    Nothing is sent again once the answer has begun. When it was lost before its first byte, the stream on the server
    may be finished: a new one is opened, under a new id, with what the client holds.
    """
    streamed = bool(body.get("stream"))
    if held.warming:
        request = Send("POST", f"/v1/{endpoint}", stock_body(held, endpoint, body), stream=streamed, answer=True)
        sent = yield from exchange(request, policy)
        return _answered(held, sent.response)
    if held.adrift:
        held, _ = yield from restore(held, policy)
    for _ in range(policy.retries + 1):
        request = Send("POST", f"{held.path}/{endpoint}", _rest(held, endpoint, body), stream=streamed, answer=True)
        sent = yield from exchange(request, policy)
        if _is_lost(sent.response) or (sent.response.status_code == 409 and sent.uncertain):
            held, _ = yield from _open_again(held, policy, uncertain=sent.uncertain)
        elif sent.response.status_code == 409:
            raise StreamFinished(error_from(sent.response).message, status=409)
        else:
            return _answered(held, sent.response)
        if held.warming:
            return (yield from complete(held, endpoint, body, policy))
    raise ServerUnavailable(f"the server loses stream {held.id} again and again", status=404)


def status(held: Held, policy: RetryPolicy) -> Flow[Ack]:
    """The stream's state as the server sees it now."""
    if held.warming:
        return _warmed(held)[1]
    sent = yield from exchange(Send("GET", held.path), policy)
    if sent.response.is_success:
        return ack_from(sent.response)
    raise error_from(sent.response)


def close(held: Held, policy: RetryPolicy) -> Flow[None]:
    """Close the stream; one that is gone already is closed."""
    if not held.warming:
        sent = yield from exchange(Send("DELETE", held.path), policy)
        if not sent.response.is_success and sent.response.status_code != 404:
            raise error_from(sent.response)


def open_streams(policy: RetryPolicy) -> Flow[list[Ack]]:
    """All streams that are open on the server, oldest first."""
    sent = yield from exchange(Send("GET", ROUTES), policy)
    if not sent.response.is_success:
        raise error_from(sent.response)
    body = sent.response.json()
    return [ack_of(item) for item in (body["data"] if isinstance(body, dict) else body)]


def stock_body(held: Held, endpoint: Endpoint, body: Mapping[str, Any]) -> dict[str, Any]:
    """The stock request for the whole prompt, with the options the stream was opened with."""
    options = {name: held.options[name] for name in _STOCK_OPTIONS[endpoint] if name in held.options}
    return whole_body(held.content, endpoint, {**options, **body})


def _rest(held: Held, endpoint: Endpoint, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body with an explicit empty rest where the user gave none."""
    field = "prompt" if endpoint == "completions" else "messages"
    if body.get(field) is not None:
        return body
    empty: Any = "" if field == "prompt" and (held.content is None or held.content.kind == "text") else []
    return {**body, field: empty}


def _open_again(held: Held, policy: RetryPolicy, *, uncertain: bool) -> Flow[tuple[Held, Ack]]:
    """Open a lost stream with the content held.

    Versions count anew, so a write that is still on its way could fit the new stream: then it gets another id.
    """
    return (yield from open_stream(replace(held, id=new_id()) if uncertain else held, policy, again=True))


def _settle(
    after: Held, sent: Exchange, *, version: int, policy: RetryPolicy, again: bool = False
) -> Flow[tuple[Held, Ack]]:
    """A 409: find out whether the write that makes `after`, at `version`, had arrived. Raises if it had not."""
    refusal = error_from(sent.response)
    read = yield from exchange(Send("GET", after.path, query={"content": "true"}), policy)
    if read.response.status_code == 404:
        return (yield from _open_again(after, policy, uncertain=sent.uncertain))
    if not read.response.is_success:
        raise error_from(read.response)
    ack = ack_from(read.response, reopened=again)
    if ack.state == "finished":
        raise StreamFinished(refusal.message, status=409, body=refusal.body)
    if sent.uncertain and ack.version == version and _holds(read.response.json(), after.content):
        return _acknowledged(after, ack)
    raise StreamConflict(refusal.message, version=ack.version, status=409, body=refusal.body)


def _first_version(held: Held) -> int:
    return 0 if held.content is None else 1


def _holds(body: Mapping[str, Any], content: Content | None) -> bool:
    """Whether a stream read with its content holds `content`: then the write was ours and nobody else's."""
    if content is None:
        return True
    return all(body.get(name) == value for name, value in fields_of(closed(content)).items())


def _is_lost(response: httpx.Response) -> bool:
    return response.status_code == 404 and isinstance(error_from(response), StreamNotFound)


def _answered(held: Held, response: httpx.Response) -> tuple[Held, httpx.Response]:
    if response.is_success:
        return held, response
    raise error_from(response)


def _acknowledged(held: Held, ack: Ack) -> tuple[Held, Ack]:
    return replace(held, version=ack.version, adrift=False), ack


def _warmed(held: Held) -> tuple[Held, Ack]:
    return held, Ack(id=held.id, state="empty" if held.content is None else "warming", version=held.version)


def _start_warming(held: Held, policy: RetryPolicy) -> Flow[tuple[Held, Ack]]:
    """Go on without context streams, on a server that answers stock requests; those must name a model."""
    options = held.options
    if "model" not in options:
        options = {**options, "model": (yield from _first_model(policy))}
    return _warmed(replace(held, options=options, warming=True, version=_first_version(held)))


def _first_model(policy: RetryPolicy) -> Flow[str]:
    sent = yield from exchange(Send("GET", "/v1/models"), policy)
    if sent.response.status_code == 404:
        raise ServerUnavailable(
            f"{sent.response.request.url} is not there: neither context streams nor an OpenAI-compatible API; "
            "check the address",
            status=404,
        )
    if not sent.response.is_success:
        raise error_from(sent.response)
    models = sent.response.json().get("data") or ()
    if not models:
        raise InvalidRequest("the server lists no model; name one: Client(model=...)", param="model")
    return str(models[0]["id"])


def is_refusal(error: BaseException) -> bool:
    """Whether the server, or the client for it, said no, so that the stream is as it was before."""
    return isinstance(error, Stream2LLMError) and not isinstance(error, ServerUnavailable)
