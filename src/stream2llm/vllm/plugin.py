"""The general plug-in, loaded in every vLLM process: adds the context-stream ops to the engine core.

vLLM's utility channel looks a method up by its name on the engine core (`EngineCoreProc._handle_client_request`), runs
it between two steps and sends its value back. A refusal is a value too: vLLM would log an exception with its traceback.
"""

# No `from __future__ import annotations`: vLLM converts msgpack values by the annotation of the parameter, a class.
from collections.abc import Callable
from typing import Any

from stream2llm.stream import StreamRefusedError

OPS = (
    "context_open",
    "context_put",
    "context_read",
    "context_status",
    "context_list",
    "context_close",
    "context_sweep",
    "context_statistics",
)


def register() -> None:
    """Add the ops to `EngineCore`; doing it again changes nothing."""
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core import EngineCore

    from stream2llm.vllm import routing
    from stream2llm.vllm.streams import StreamTable

    def table(core: Any) -> StreamTable:
        streams = getattr(core.scheduler, "streams", None)
        if not isinstance(streams, StreamTable):
            raise StreamRefusedError(
                "disabled",
                "the engine's scheduler knows no context streams; start the server with `stream2llm serve`, or with "
                "--scheduler-cls stream2llm.vllm.scheduler.AsyncContextScheduler",
            )
        return streams

    def answer(op: Callable[[], Any]) -> Any:
        try:
            return op()
        except StreamRefusedError as refusal:
            return {"error": refusal.code, "message": str(refusal), "version": refusal.version}

    def start(core: Any, request: Any) -> None:
        if request is not None:
            # As if the request came from a wave that is over: data-parallel engines that have paused wake up.
            core.add_request(request, -1)

    def context_open(
        self: Any,
        stream_id: str,
        ttl: float,
        source: dict,  # type: ignore[type-arg]
        pieces: list,  # type: ignore[type-arg]
        token_ids: list,  # type: ignore[type-arg]
        template: EngineCoreRequest,
    ) -> dict[str, Any]:
        def op() -> dict[str, Any]:
            streams = table(self)
            hasher = self.request_block_hasher
            start(self, streams.open(stream_id, ttl, source, pieces, token_ids, template, hasher))
            return streams.ack(stream_id)

        return answer(op)

    def context_put(
        self: Any,
        stream_id: str,
        created_at: float,
        base_version: int,
        writes: int,
        keep: int,
        tail: list,  # type: ignore[type-arg]
        pieces: list,  # type: ignore[type-arg]
        source: Any,
    ) -> dict[str, Any]:
        def op() -> dict[str, Any]:
            streams = table(self)
            hasher = self.request_block_hasher
            start(self, streams.put(stream_id, created_at, base_version, writes, keep, tail, pieces, source, hasher))
            return streams.ack(stream_id)

        return answer(op)

    def context_read(self: Any, stream_id: str) -> dict[str, Any]:
        return answer(lambda: table(self).read(stream_id))

    def context_status(self: Any, stream_id: str) -> dict[str, Any]:
        return answer(lambda: table(self).status(stream_id))

    def context_list(self: Any) -> Any:
        return answer(lambda: table(self).all_status())

    def context_close(self: Any, stream_id: str) -> dict[str, Any]:
        def op() -> dict[str, Any]:
            table(self).close(stream_id)
            return {}

        return answer(op)

    def context_sweep(self: Any) -> dict[str, Any]:
        def op() -> dict[str, Any]:
            table(self).expire()
            return {}

        return answer(op)

    def context_statistics(self: Any) -> dict[str, Any]:
        def op() -> dict[str, Any]:
            table(self)
            return self.scheduler.context_figures()

        return answer(op)

    methods = locals()
    for name in OPS:
        setattr(EngineCore, name, methods[name])
    routing.install()
