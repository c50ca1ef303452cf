"""Prefix warming: against a server without context streams, each write sends a one-token request for the content so
far, so that the server's own prefix cache is warm when the real request comes.

At most one request per stream is in flight and the newest content wins. A warm-up that fails costs time only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import httpx

from stream2llm.client.content import Endpoint, value_of
from stream2llm.client.flow import Send
from stream2llm.client.stream_flows import Held, stock_body

logger = logging.getLogger("stream2llm")

MESSAGE = (
    "this server has no context streams (start it with `stream2llm serve`): the client warms its prefix cache with "
    "one-token requests instead; answers are the same, but the server computes them as ordinary requests"
)


def warm_up(held: Held) -> Send | None:
    """The request that has the server compute the content held; None when there is nothing to compute."""
    if held.content is None or not value_of(held.content):
        return None
    endpoint: Endpoint = "chat/completions" if held.content.kind == "messages" else "completions"
    # Streamed, because then the headers come at once and hanging up stops the computation.
    body = {**stock_body(held, endpoint, {}), "max_tokens": 1, "stream": True}
    return Send("POST", f"/v1/{endpoint}", body, stream=True, answer=True)


class Warmer:
    """Sends warm-ups from a thread that lives as long as there is something to send."""

    def __init__(self, open_response: Callable[[Send], AbstractContextManager[httpx.Response]]) -> None:
        self._open_response = open_response
        self._lock = threading.Lock()
        self._next: Send | None = None
        self._running = False
        self._unwanted = False
        self._response: httpx.Response | None = None

    def offer(self, request: Send) -> None:
        """Send `request` when the one in flight is done, unless a newer one is offered before."""
        with self._lock:
            self._next = request
            self._unwanted = False
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="stream2llm-warmer", daemon=True).start()

    def stop(self) -> None:
        """Forget what has not been sent and hang up on what is in flight."""
        with self._lock:
            self._next = None
            self._unwanted = True
            if self._response is not None:
                _hang_up(self._response)

    def _work(self) -> None:
        while (request := self._take()) is not None:
            try:
                with self._open_response(request) as response:
                    with self._lock:
                        self._response = response
                        if self._unwanted:
                            continue
                    for _ in response.iter_bytes():
                        pass
                    _report(response)
            except (httpx.HTTPError, httpx.StreamError, RuntimeError) as error:
                logger.debug("warm-up not finished: %r", error)
            finally:
                with self._lock:
                    self._response = None

    def _take(self) -> Send | None:
        with self._lock:
            request, self._next = self._next, None
            self._running = request is not None
            return request


class AsyncWarmer:
    """As `Warmer`, with a task."""

    def __init__(self, open_response: Callable[[Send], AbstractAsyncContextManager[httpx.Response]]) -> None:
        self._open_response = open_response
        self._next: Send | None = None
        self._task: asyncio.Task[None] | None = None

    def offer(self, request: Send) -> None:
        """Send `request` when the one in flight is done, unless a newer one is offered before."""
        self._next = request
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="stream2llm-warmer")

    async def stop(self) -> None:
        """Forget what has not been sent and hang up on what is in flight."""
        self._next = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        while (request := self._next) is not None:
            self._next = None
            try:
                async with self._open_response(request) as response:
                    async for _ in response.aiter_bytes():
                        pass
                    _report(response)
            except (httpx.HTTPError, httpx.StreamError) as error:
                logger.debug("warm-up not finished: %r", error)


def _report(response: httpx.Response) -> None:
    if not response.is_success:
        logger.warning("the server refused a warm-up with status %d", response.status_code)


def _hang_up(response: httpx.Response) -> None:
    """End the connection under a thread that is reading from it: closing it would not wake the thread."""
    network_stream = response.extensions.get("network_stream")
    connection = network_stream.get_extra_info("socket") if network_stream is not None else None
    if isinstance(connection, socket.socket):
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            logger.debug("the warm-up's connection was gone: %r", error)
