"""With data parallelism, the final request of a stream goes to the rank that holds the stream.

A final request may come through any endpoint (`vllm_xargs` is all it needs), so the rank is chosen where vLLM chooses
it: in the load balancer of the engine client.
"""

from __future__ import annotations

from typing import Any

from stream2llm.vllm.ops import rank_of


def install() -> None:
    """Let `DPLBAsyncMPClient` look at the stream a request names; doing it again changes nothing."""
    from vllm.v1.engine.core_client import DPLBAsyncMPClient

    stock = DPLBAsyncMPClient.get_core_engine_for_request
    if getattr(stock, "knows_streams", False):
        return

    def get_core_engine_for_request(self: Any, request: Any) -> Any:
        extra = (request.sampling_params.extra_args if request.sampling_params is not None else None) or {}
        stream_id = extra.get("context_stream")
        if isinstance(stream_id, str) and request.data_parallel_rank is None:
            request.data_parallel_rank = rank_of(stream_id, len(self.core_engines))
        return stock(self, request)

    get_core_engine_for_request.knows_streams = True  # type: ignore[attr-defined]
    DPLBAsyncMPClient.get_core_engine_for_request = get_core_engine_for_request
