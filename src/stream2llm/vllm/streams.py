"""The engine core's table of context streams: a chain of ordinary prefill requests each, and the blocks they leave."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from stream2llm.clock import Clock
from stream2llm.policy import Policy
from stream2llm.ranking import Ranking
from stream2llm.stream import StreamRefusedError, StreamState, longest_common_prefix
from stream2llm.vllm import compat
from stream2llm.vllm.pins import Pins
from stream2llm.vllm.statistics import Statistics
from stream2llm.vllm.stream import LAST_PRIORITY, Stream

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreRequest

BlockHasher = Callable[[Request], list[Any]]

# Finished streams are remembered for a while, so that a late write is told so (409) and not that it never existed.
_REMEMBERED_FINISHED = 4096


class StreamTable:
    """Opens, writes, finishes and closes streams; tells the scheduler which requests are theirs.

    A version's request computes whole blocks only: the tokens behind the last full block could not be found again by
    anybody, so the successor or the final request computes them anyway.
    """

    def __init__(self, scheduler: Scheduler, policy: Policy, clock: Clock) -> None:
        self._scheduler = scheduler
        self._policy = policy
        self._clock = clock
        self._manager = scheduler.kv_cache_manager
        self._block_size: int = scheduler.block_size
        # Greedy: on the CPU, vLLM 0.32 drafts other tokens for greedy requests beside one that samples, and its n-gram
        # speculation then changes their answers.
        self._version_params = SamplingParams(max_tokens=1, temperature=0.0)
        self._streams: dict[str, Stream] = {}
        self._finished: OrderedDict[str, StreamState] = OrderedDict()
        self._owners: dict[str, Stream] = {}  # by request id: a live version's, or a final request's until adopted
        self._serials = itertools.count()
        self._next_expiry = math.inf  # no stream expires before
        self._silence: Ranking[Stream] = Ranking()  # by the time at which they are silent unless they are written to
        self.giving: Ranking[Stream] = Ranking()
        """The open streams in the order in which they give up their blocks."""
        self.statistics = Statistics()

    def __iter__(self) -> Iterator[Stream]:
        """The open streams."""
        return iter(self._streams.values())

    @property
    def holds_blocks(self) -> bool:
        return any(stream.pins for stream in self._holders())

    def __getitem__(self, stream_id: str) -> Stream:
        """An open stream."""
        return self._streams[stream_id]

    def __bool__(self) -> bool:
        """Whether a stream is open, or a final request still has to adopt its stream's blocks."""
        return bool(self._streams or self._owners)

    def owner(self, request: Request) -> Stream | None:
        """The stream of a version's request or of a final request that has not yet adopted its blocks."""
        return self._owners.get(request.request_id)

    def is_version(self, request: Request) -> bool:
        stream = self._owners.get(request.request_id)
        return stream is not None and stream.live is request

    # What the op channel asks for

    def open(
        self,
        stream_id: str,
        ttl: float,
        source: dict[str, Any],
        pieces: list[Any],
        token_ids: list[int],
        template: EngineCoreRequest,
        hasher: BlockHasher,
    ) -> Request | None:
        """Open a stream; return the request that prefills it, for the engine to add, if there is a block to compute."""
        self.expire()
        if stream_id in self._streams:
            raise StreamRefusedError("exists", f"context stream {stream_id} exists already; choose another id")
        self._check_length(stream_id, len(token_ids))
        self._finished.pop(stream_id, None)  # a finished stream's id may be used again
        state = StreamState.opened(stream_id, token_ids, ttl, self._clock.time())
        stream = Stream(state, template, source, pieces, Pins(self._manager))
        self._streams[stream_id] = stream
        self._next_expiry = min(self._next_expiry, state.expires_at)
        self.statistics.opened += 1
        self._count_write(stream.state.version, len(token_ids), 0)
        version = self._next_version(stream, hasher)
        self._heard_of(stream)
        return version

    def put(
        self,
        stream_id: str,
        created_at: float,
        base_version: int,
        writes: int,
        keep: int,
        tail: list[int],
        pieces: list[Any],
        source: dict[str, Any] | None,
        hasher: BlockHasher,
    ) -> Request | None:
        """Write a new version, which supersedes the running one; return its request as `open` does."""
        stream = self._open_stream(stream_id)
        self._check_length(stream_id, keep + len(tail), stream.state.version)
        now = replace(stream.state, computed=stream.computed)
        state = now.written(created_at, base_version, writes, keep, tail, self._clock.time())
        self._retire(stream)
        stream.state = state
        stream.pins.trim(state.lcp)
        self._scheduler.streams_changed()
        stream.block_hashes = stream.block_hashes[: self._hashes_within(state.lcp)]
        if source is None:
            stream.pieces.extend(pieces)
        else:
            stream.source, stream.pieces = source, pieces
        self._count_write(writes, len(tail), state.invalidated)
        version = self._next_version(stream, hasher)
        self._heard_of(stream)
        return version

    def read(self, stream_id: str) -> dict[str, Any]:
        stream = self._open_stream(stream_id)
        return {
            "ack": self._status(stream),
            "source": stream.source,
            "pieces": stream.pieces,
            "token_ids": list(stream.state.tokens),
        }

    def ack(self, stream_id: str) -> dict[str, Any]:
        """The state of a stream just opened or written to, however short its time to live is."""
        return self._status(self._streams[stream_id])

    def status(self, stream_id: str) -> dict[str, Any]:
        self.expire()
        if stream_id in self._finished:
            return self._ack(self._finished[stream_id], "finished", 0)
        return self._status(self._open_stream(stream_id))

    def all_status(self) -> list[dict[str, Any]]:
        self.expire()
        return [self._status(stream) for stream in self._streams.values()]

    def close(self, stream_id: str) -> None:
        """Close a stream: its version is aborted, its blocks are let go. A final request that runs is not touched."""
        if self._finished.pop(stream_id, None) is None:
            self._drop(self._open_stream(stream_id))

    def expire(self) -> None:
        """Drop the streams whose time to live has passed, and note which have gone silent."""
        now = self._clock.time()
        while (first := self._silence.first()) is not None and first[0] <= (now,):
            stream = first[1]
            self._silence.discard(stream.state.id)
            stream.silent = True
            self._rerank(stream)
            self._scheduler.streams_changed()
        if now < self._next_expiry:
            return
        for stream in [stream for stream in self._streams.values() if stream.state.expires_at <= now]:
            self.statistics.expired += 1
            self._drop(stream)
        self._next_expiry = min((stream.state.expires_at for stream in self._streams.values()), default=math.inf)

    # What happens to requests

    def finish(self, stream_id: str, final: Request) -> float | None:
        """A final request names the stream: no more versions; the pins stay until the request holds the blocks.

        Returns when the stream was opened; None if there is no such stream, which costs nothing but time.
        """
        self.expire()
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        self._retire(stream)
        # By block hash, not by token: another LoRA adapter, cache salt or image makes another chain. Pins that the
        # request cannot use would only stand in its own way.
        usable = (
            0 if final.skip_reading_prefix_cache else longest_common_prefix(stream.block_hashes, final.block_hashes)
        )
        held = stream.pins.tokens
        stream.pins.trim(usable * self._scheduler.hash_block_size)
        self.statistics.tokens_adopted += stream.pins.tokens
        self.statistics.tokens_invalidated += held - stream.pins.tokens
        self.statistics.finals += 1
        stream.final = final
        self._forget(stream)
        self._owners[final.request_id] = stream
        self._finished[stream_id] = stream.state.finish()
        if len(self._finished) > _REMEMBERED_FINISHED:
            self._finished.popitem(last=False)
        return stream.state.created_at

    def admitted(self, request: Request, now: float) -> Stream | None:
        """A request was given a sequence slot and holds its own references: its stream's pins have done their work.

        Returns the stream if the request is its version.
        """
        stream = self._owners.get(request.request_id)
        if stream is None:
            return None
        stream.pins.release()
        if stream.final is not None:
            del self._owners[request.request_id]
            return None
        stream.started = now
        return stream

    def freeing(self, request: Request) -> None:
        """A request is about to free its blocks: a version leaves them to its stream; a final gives up its claim."""
        request_id = request.request_id
        stream = self._owners.pop(request_id, None)
        if stream is None:
            return
        if stream.live is request:
            stream.live = None
            stream.pins.take_over(request_id)
            if stream.state.id in self.giving:
                self._rerank(stream)
        elif stream.final is request:
            stream.pins.release()

    def preempted(self, version: Request) -> None:
        """A version lost its sequence slot, and perhaps blocks."""
        self._rerank(self._owners[version.request_id])

    def finals(self) -> list[Stream]:
        """The streams whose final request has yet to adopt their pins."""
        return [stream for stream in self._owners.values() if stream.final is not None]

    def release_all_pins(self) -> None:
        """Let go of every pinned block, for vLLM to reset the prefix cache."""
        for stream in self._holders():
            stream.pins.release()

    def _holders(self) -> list[Stream]:
        """Every stream that may hold pins: the open ones, and those whose final request has yet to adopt them."""
        return [*self._streams.values(), *self.finals()]

    def _next_version(self, stream: Stream, hasher: BlockHasher) -> Request | None:
        tokens = stream.state.tokens
        whole = len(tokens) // self._block_size * self._block_size
        if whole <= stream.pins.tokens:
            return None
        template = stream.template
        request = Request(
            # Unique for ever: the output of a step under way is looked up by it.
            request_id=f"{stream.state.id}#{stream.state.version}.{next(self._serials)}",
            prompt_token_ids=list(tokens[:whole]),
            sampling_params=self._version_params,
            pooling_params=None,
            arrival_time=stream.state.created_at,
            lora_request=template.lora_request,
            cache_salt=template.cache_salt,
            priority=LAST_PRIORITY,
        )
        # Only new blocks are hashed: hashes are chained, those of the common prefix stay as they are.
        request.block_hashes = stream.block_hashes
        request._block_hasher = hasher
        request.update_block_hashes()
        stream.live = request
        self._owners[request.request_id] = stream
        return request

    def _hashes_within(self, tokens: int) -> int:
        """How many block hashes depend on nothing but the first `tokens` tokens."""
        return max(0, tokens - compat.hash_lookahead(self._scheduler)) // self._scheduler.hash_block_size

    def _retire(self, stream: Stream) -> None:
        """End the running version; `freeing` takes its blocks over."""
        live = stream.live
        if live is not None:
            self._scheduler.finish_requests(live.request_id, RequestStatus.FINISHED_ABORTED)
            stream.live = None  # a connector may keep the blocks, and with them the request, for a while

    def _drop(self, stream: Stream) -> None:
        self._forget(stream)
        self._retire(stream)
        stream.pins.release()
        self._scheduler.streams_changed()

    def _forget(self, stream: Stream) -> None:
        stream_id = stream.state.id
        del self._streams[stream_id]
        self._silence.discard(stream_id)
        self.giving.discard(stream_id)

    def _heard_of(self, stream: Stream) -> None:
        """The stream was written to."""
        stream.silent = False
        self._silence.put(stream.state.id, (stream.state.silent_at,), stream)
        self._rerank(stream)

    def _rerank(self, stream: Stream) -> None:
        job = stream.job
        stream.rank = self._policy.service(job)
        self.giving.put(stream.state.id, self._policy.giving(job), stream)
        if stream.live is not None:
            self._scheduler.rerank(stream.live)

    def _open_stream(self, stream_id: str) -> Stream:
        self.expire()
        stream = self._streams.get(stream_id)
        if stream_id in self._finished:
            raise StreamRefusedError(
                "finished", f"context stream {stream_id} is finished", self._finished[stream_id].version
            )
        if stream is None:
            raise StreamRefusedError("unknown", f"no context stream {stream_id}: never opened, closed, or expired")
        return stream

    def _check_length(self, stream_id: str, length: int, version: int | None = None) -> None:
        limit = min(self._scheduler.max_model_len, self.pool_tokens) - 1
        if length > limit:
            raise StreamRefusedError(
                "too_long",
                f"context stream {stream_id} would have {length} tokens, the limit is {limit} (one less than the "
                "model's maximum length and the KV cache's size); shorten the context or start the server with a "
                "larger --max-model-len",
                version,
            )

    @property
    def pool_tokens(self) -> int:
        """Tokens that the KV cache can hold for one request (one block is vLLM's null block)."""
        groups = self._manager.num_kv_cache_groups
        return (self._manager.block_pool.num_gpu_blocks - 1) // groups * self._block_size

    def _count_write(self, writes: int, tokens: int, invalidated: int) -> None:
        self.statistics.versions += writes
        self.statistics.tokens_received += tokens
        self.statistics.tokens_invalidated += invalidated

    def _status(self, stream: Stream) -> dict[str, Any]:
        return self._ack(stream.state, stream.phase(self._block_size), stream.computed)

    @staticmethod
    def _ack(state: StreamState, phase: str, computed: int) -> dict[str, Any]:
        return {
            "id": state.id,
            "state": phase,
            "version": state.version,
            "tokens": len(state.tokens),
            "lcp": state.lcp,
            "invalidated_tokens": state.invalidated,
            "computed_tokens": computed,
            "created_at": state.created_at,
            "expires_at": state.expires_at,
        }

    def figures(self) -> dict[str, Any]:
        """`Statistics` and the present state of streams and pool, for the statistics op."""
        phases = [stream.phase(self._block_size) for stream in self._streams.values()]
        pool = self._manager.block_pool
        return {
            **self.statistics.as_dict(),
            "streams": {phase: phases.count(phase) for phase in sorted(set(phases))},
            "pinned_blocks": sum(stream.pins.exclusive_blocks for stream in self._holders()),
            "free_blocks": pool.get_num_free_blocks(),
            "total_blocks": pool.num_gpu_blocks,
            "block_size": self._block_size,
        }
