"""The HTTP API, as an endpoint plug-in of vLLM's server.

models      request and response bodies       errors      refusals in vLLM's error format
rendering   content to token ids              writer      the writes to one stream
streams     all streams of this process       completing  the final request, answered by the stock endpoint
operations  what JSON Lines and WebSocket share           jsonl, websocket, routes
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient


class ContextStreamsPlugin:
    """vLLM's `EndpointPlugin`: routes under /v1/context_streams."""

    name = "stream2llm"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        from stream2llm.vllm.endpoints.routes import router

        app.include_router(router)

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        from stream2llm.vllm.endpoints.streams import ContextStreams

        assert engine_client is not None, "the plug-in is not loaded for the render server"
        state.context_streams = streams = ContextStreams(engine_client, state)
        state.context_streams_sweeper = asyncio.create_task(streams.sweep())
