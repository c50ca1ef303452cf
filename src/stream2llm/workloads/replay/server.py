"""What a replay asks of a server before it starts: what it serves, and whether it can."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from stream2llm.client.errors import error_from
from stream2llm.client.stream_flows import ROUTES
from stream2llm.client.surface import LIMITS

TIMEOUT_S = 600.0


class ServerError(Exception):
    """The server cannot be used for a replay; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the server serves. `longest`: tokens of a prompt and its answer."""

    model: str
    longest: int | None


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Policy and kind of preemption, as `stream2llm serve` names them."""

    policy: str = ""
    preemption: str = ""


def connect(url: str, api_key: str | None = None) -> httpx.AsyncClient:
    """A client with as many connections as a replay has queries at once."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    return httpx.AsyncClient(base_url=base, headers=headers, timeout=TIMEOUT_S, limits=LIMITS)


async def served(http: httpx.AsyncClient, model: str | None = None) -> Served:
    """The model of that name, or the server's first. Raises `ServerError`."""
    try:
        response = await http.get("/v1/models")
        if response.is_error:
            raise ServerError(f"{http.base_url} refuses to list its models: {error_from(response)}")
        models = {entry["id"]: entry.get("max_model_len") for entry in response.json()["data"]}
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            f"no server answers at {http.base_url} ({error or type(error).__name__}); start one with `stream2llm serve`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(f"what answers at {http.base_url} is not an OpenAI-compatible server") from error
    if not models or (model is not None and model not in models):
        raise ServerError(f"{http.base_url} does not serve the model {model!r}; it has: {', '.join(models) or 'none'}")
    name = model if model is not None else next(iter(models))
    return Served(name, models[name])


async def has_streams(http: httpx.AsyncClient) -> bool:
    """Whether the server has context streams."""
    return (await http.get(ROUTES)).is_success


async def scheduling(http: httpx.AsyncClient) -> Scheduling:
    """How the server schedules; nothing is known of one without context streams."""
    statistics = await http.get(f"{ROUTES}/statistics")
    if not statistics.is_success:
        return Scheduling()
    first, *_ = statistics.json()["data"]
    return Scheduling(str(first.get("policy", "")), str(first.get("preemption", "")))
