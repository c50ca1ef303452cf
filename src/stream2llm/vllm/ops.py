"""The front end's side of the op channel: what an API server asks of the engine core about context streams.

Engine-core methods are added by `plugin.register` and called through vLLM's utility channel
(`AsyncMPClient._call_utility_async`). The engine core is the one authority on a stream, so any API-server process can
serve any request; with data parallelism a stream lives on the rank that its id maps to.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stream2llm.stream import StreamRefusedError

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient
    from vllm.v1.engine import EngineCoreRequest


@dataclass(frozen=True, slots=True)
class Ack:
    """The engine's answer to a write. Token counts are of the whole prompt so far, times are Unix seconds."""

    id: str
    state: str
    version: int
    tokens: int
    lcp: int
    invalidated_tokens: int
    computed_tokens: int
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class StreamContent:
    """A stream as the engine keeps it: its state, the front end's own opaque source and pieces, its token ids."""

    ack: Ack
    source: dict[str, Any]
    pieces: list[Any]
    token_ids: list[int]


def rank_of(stream_id: str, ranks: int) -> int:
    """The data-parallel rank a stream lives on: the same in every process, without asking anybody."""
    return zlib.crc32(stream_id.encode()) % ranks


class ContextOps:
    """Calls the engine core's context-stream methods. Every method raises `StreamRefusedError` on a refusal."""

    def __init__(self, engine_client: EngineClient) -> None:
        self._client: Any = engine_client

    @property
    def ranks(self) -> int:
        return len(self._client.engine_core.core_engines)

    def new_id(self) -> str:
        """An unguessable id (128 random bits)."""
        return "cs_" + secrets.token_hex(16)

    async def open(
        self,
        stream_id: str,
        ttl: float,
        source: dict[str, Any],
        pieces: list[Any],
        token_ids: list[int],
        template: EngineCoreRequest,
    ) -> Ack:
        """Open a stream.

        `template` is a request built and validated by `input_processor.process_inputs` (any prompt): its LoRA, cache
        salt and priority are used for every version. `source` and `pieces` are kept as they are and given back by
        `read`; `source` is replaced, `pieces` appended to, by `put`. Empty `token_ids` opens an empty stream
        (version 0).
        """
        return self._ack(
            await self._call(stream_id, "context_open", stream_id, ttl, source, pieces, token_ids, template)
        )

    async def put(
        self,
        stream_id: str,
        *,
        created_at: float,
        base_version: int,
        writes: int,
        keep: int,
        tail: list[int],
        pieces: list[Any],
        source: dict[str, Any] | None = None,
    ) -> Ack:
        """Write a new version: the first `keep` tokens of version `base_version`, then `tail`.

        `created_at` is the stream's: its id may have been closed and used again since. `writes` is how many client
        writes it stands for (the version rises by that). With `source` None, `pieces` are appended to the kept ones;
        otherwise source and pieces replace what was kept. Raises `conflict` when this is not the current version of
        this stream: read it and build the write anew.
        """
        return self._ack(
            await self._call(
                stream_id, "context_put", stream_id, created_at, base_version, writes, keep, tail, pieces, source
            )
        )

    async def read(self, stream_id: str) -> StreamContent:
        """A stream's content; for a process that has not seen its latest version."""
        kept = await self._call(stream_id, "context_read", stream_id)
        return StreamContent(**{**kept, "ack": self._ack(kept["ack"])})

    async def status(self, stream_id: str) -> Ack:
        """A stream's state; lcp and invalidated_tokens are those of its last write."""
        return self._ack(await self._call(stream_id, "context_status", stream_id))

    async def list_all(self) -> list[Ack]:
        """All open streams, oldest first."""
        answers = await self._client.engine_core.call_utility_all_async("context_list")
        return sorted((Ack(**item) for answer in answers for item in answer), key=lambda ack: ack.created_at)

    async def close(self, stream_id: str) -> None:
        """Close an open or finished stream and release what it pins."""
        await self._call(stream_id, "context_close", stream_id)

    async def sweep(self) -> None:
        """Drop expired streams. An idle engine has no clock of its own: the front end calls this now and then."""
        await self._client.engine_core.call_utility_all_async("context_sweep")

    async def statistics(self) -> list[dict[str, Any]]:
        """Counters of every rank, in rank order; see `streams.Statistics`."""
        return await self._client.engine_core.call_utility_all_async("context_statistics")

    async def _call(self, stream_id: str, method: str, *args: Any) -> dict[str, Any]:
        core = self._client.engine_core
        engine = core.core_engines[rank_of(stream_id, len(core.core_engines))]
        answer = await core._call_utility_async(method, *args, engine=engine)
        if "error" in answer:
            raise StreamRefusedError(answer["error"], answer["message"], answer.get("version"))
        return answer

    @staticmethod
    def _ack(answer: dict[str, Any]) -> Ack:
        return Ack(**answer)
