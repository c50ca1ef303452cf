"""A KV connector that loads asynchronously, as vLLM's OffloadingConnector and LMCache do: every load takes three steps.

It loads nothing: the blocks keep what lies in them. So a test can look at the states, not at the answers.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

BLOCK = 32
STEPS = 3


class Loads(KVConnectorMetadata):
    def __init__(self, request_ids: list[str]) -> None:
        self.request_ids = request_ids


class LoadingConnector(KVConnectorBase_V1):
    """Claims to have the first missing block of every request, once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begun: list[str] = []
        self._seen: set[str] = set()
        self._steps_left: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        missing = (request.num_tokens - 1) // BLOCK * BLOCK - num_computed_tokens
        return (0, False) if missing <= 0 or request.request_id in self._seen else (BLOCK, True)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._begun.append(request.request_id)
            self._seen.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        begun, self._begun = self._begun, []
        return Loads(begun)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, Loads)
        self._steps_left |= dict.fromkeys(metadata.request_ids, STEPS)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:
        self._steps_left = {request_id: left - 1 for request_id, left in self._steps_left.items()}
        done = {request_id for request_id, left in self._steps_left.items() if left <= 0}
        for request_id in done:
            del self._steps_left[request_id]
        return None, done or None

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
