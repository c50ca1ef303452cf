"""Phase 2: carry a plan out, then let stock `schedule()` run on queues that hold only what was planned.

Subclasses of vLLM's schedulers through one mixin (`--scheduler-cls stream2llm.vllm.scheduler.AsyncContextScheduler`).
Stock code does all allocation, LoRA, encoder, speculative-decoding and connector work. While no stream is open the
mixin adds one comparison to a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from vllm.logger import init_logger
from vllm.utils.math_utils import cdiv
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from stream2llm.planner import Budget, Candidate, Kind, Plan, plan
from stream2llm.vllm.eviction import Eviction
from stream2llm.vllm.streams import Stream, StreamTable

logger = init_logger("vllm.stream2llm.scheduler")

_IDLE = "idle#"  # no request id has this form, so a stream's id, which a client may choose, cannot be taken for one
_CONSIDERED = 64  # parked versions that a step looks at; a step can compute few of them
_READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class _ContextStreams(Scheduler):
    """The mixin. A version's request waits in `_parked`, not in the engine's own queues: it is handed to them for the
    steps in which the plan lets it be computed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.cache_config.enable_prefix_caching:
            raise ValueError(
                "context streams need prefix caching: a stream's versions find each other's KV blocks through it. "
                "Start the server without --no-enable-prefix-caching, or without this scheduler."
            )
        self.streams = StreamTable(self)
        self.eviction = Eviction.of(self.vllm_config, self.connector, self.block_size)
        self._parked: dict[str, Request] = {}
        self._parked_may_run = False  # something changed since the plan last left all of them parked

    # Requests come and go

    def add_request(self, request: Request) -> None:
        params = request.sampling_params
        stream_id = (params.extra_args or {}).get("context_stream") if params is not None else None
        if isinstance(stream_id, str) and request.request_id not in self.requests:
            self.streams.finish(stream_id, request)
        super().add_request(request)

    def _enqueue_waiting_request(self, request: Request) -> None:
        if self.streams.is_version(request):
            self._park(request)
        else:
            super()._enqueue_waiting_request(request)

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        version = self.streams.is_version(request)
        super()._preempt_request(request, timestamp, drop_stale_output or version)
        if version:
            self.waiting.remove_request(request)
            self._park(request)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        if not self.streams.is_version(request):
            return super()._update_request_with_output(request, new_token_ids, is_stale)
        # The version's prefill is done: the sampled token is dropped, nothing reaches a client.
        request.num_output_placeholders = 0
        request.status = RequestStatus.FINISHED_STOPPED
        return [], True

    def _free_blocks(self, request: Request) -> None:
        self._parked.pop(request.request_id, None)
        self.streams.freeing(request)
        super()._free_blocks(request)
        self._parked_may_run = True

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.streams.release_all_pins()
        return super().reset_prefix_cache(reset_running_requests, reset_connector)

    def set_pause_state(self, pause_state: PauseState) -> None:
        super().set_pause_state(pause_state)
        self._parked_may_run = True

    def get_num_unfinished_requests(self) -> int:
        """Parked versions count while they may be able to run; else the engine sleeps, though they wait for memory."""
        may_run = self._parked_may_run and self._pause_state == PauseState.UNPAUSED
        return super().get_num_unfinished_requests() + (len(self._parked) if may_run else 0)

    def has_finished_requests(self) -> bool:
        if self.finished_req_ids or self.connector is None:
            return bool(self.finished_req_ids)
        # As in stock code: finished requests wait for the connector. Parked ones are in `requests` too.
        return len(self.requests) > sum(self.get_request_counts()) + len(self._parked)

    def _park(self, request: Request) -> None:
        self._parked[request.request_id] = request
        self._parked_may_run = True

    def streams_changed(self) -> None:
        """An op let go of blocks without freeing a request."""
        self._parked_may_run = True

    # One step

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        if not self.streams:
            output = super().schedule(throttle_prefills)
            self.streams.statistics.tokens_computed += output.total_num_scheduled_tokens
            return output
        started = time.perf_counter()
        self.streams.expire()
        step_plan = plan(*self._snapshot())
        self._evict(step_plan)
        statistics = self.streams.statistics
        statistics.steps += 1
        statistics.plan_seconds += time.perf_counter() - started
        with self._only_planned(step_plan):
            output = super().schedule(throttle_prefills)
        self.streams.scheduled(output.num_scheduled_tokens)
        statistics.tokens_computed += output.total_num_scheduled_tokens
        # Who is left parked waits for a change; until one comes the engine may sleep. A throttled step decided nothing.
        self._parked_may_run = throttle_prefills
        if not output.total_num_scheduled_tokens and not throttle_prefills:
            self._break_stall()
        return output

    def _break_stall(self) -> None:
        """The last resort of progress: if complete requests wait and nothing runs, no stream keeps a block.

        It should not come to this. But a plan is made of numbers that vLLM is free to see otherwise, and an engine that
        waits for ever for blocks that streams hold would be worse than any recompute.
        """
        waiting = any(request.status in _READY for request in self.waiting)
        if waiting and not self.running and self._pause_state == PauseState.UNPAUSED and self.streams.holds_blocks:
            logger.warning("no request could be scheduled; taking the KV blocks of all context streams")
            self.streams.release_all_pins()

    def _snapshot(self) -> tuple[list[Candidate], Budget]:
        waiting = list(self._waiting_complete())
        free = self.kv_cache_manager.block_pool.get_num_free_blocks()
        if self.running:
            free -= self.kv_cache_manager.watermark_blocks
        in_engine = [*self.running, *self.kv_holding_waiting, *waiting]
        parked = list(islice(self._parked_in_order(), _CONSIDERED))
        # Counting blocks one by one is needed only where they may not suffice.
        shortage = self._most_needed([*in_engine, *parked]) - free
        pressed = shortage > 0
        candidates = [self._candidate(place, request, pressed) for place, request in enumerate(in_engine)]
        candidates += [self._candidate(0, request, pressed) for request in parked]
        if pressed:
            considered = {candidate.id for candidate in candidates}
            candidates += self._holders(considered, shortage)
        complete = sum(not self.streams.is_version(request) for request in self.running)
        slots = self.max_num_active_reqs - complete - self.num_waiting_for_streaming_input
        return candidates, Budget(self.max_num_scheduled_tokens, slots, free)

    def _parked_in_order(self) -> Iterator[Request]:
        """The parked versions, those of the oldest stream first."""
        for stream in self.streams:
            live = stream.live
            if live is not None and live.request_id in self._parked:
                yield live

    def _holders(self, considered: set[str], shortage: int) -> Iterator[Candidate]:
        """Those who hold pinned blocks and have nothing computed in this step: the youngest streams that together hold
        `shortage` blocks, and final requests that wait behind others, who give up last."""
        for stream in self.streams.finals():
            final = stream.final
            if final is not None and final.request_id not in considered:
                yield Candidate(final.request_id, Kind.IDLE, -1, held_blocks=stream.pins.exclusive_blocks)
        for stream in self.streams.youngest_first():
            live = stream.live
            if shortage <= 0:
                return
            if not stream.pins or (live is not None and live.request_id in considered):
                continue
            held = stream.pins.exclusive_blocks
            shortage -= held
            id = _IDLE + stream.state.id if live is None else live.request_id
            yield Candidate(id, Kind.IDLE, stream.state.created_at, held_blocks=held)

    def _waiting_complete(self) -> Iterator[Request]:
        """The complete requests that stock admission can get to in this step, in its order."""
        if self._pause_state != PauseState.UNPAUSED:
            return
        tokens = self.max_num_scheduled_tokens
        for request in self.waiting:
            if request.status in _READY:
                yield request
                tokens -= request.num_tokens - self._pinned_tokens(request)
                if tokens <= 0:
                    return

    def _candidate(self, place: int, request: Request, pressed: bool) -> Candidate:
        # Running, or loading its KV blocks from elsewhere: it holds them, though it has no slot.
        running = request.status not in _READY
        stream = self.streams.owner(request)
        # A version whose blocks a connector is loading can be neither parked nor evicted: as good as complete.
        loading = running and request.status != RequestStatus.RUNNING
        version = stream is not None and stream.live is request and not loading
        remaining = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
        return Candidate(
            id=request.request_id,
            kind=Kind.PARTIAL if version else Kind.COMPLETE,
            order=stream.state.created_at if version and stream is not None else place,
            running=running,
            remaining_tokens=max(0, remaining if running else request.num_tokens - self._pinned_tokens(request)),
            needed_blocks=self._needed_blocks(request) if pressed else 0,
            held_blocks=self._held_blocks(request, stream, version) if pressed else 0,
        )

    def _pinned_tokens(self, request: Request) -> int:
        stream = self.streams.owner(request)
        return min(stream.pins.tokens, request.num_tokens - 1) if stream is not None else 0

    def _most_needed(self, requests: Iterable[Request]) -> int:
        """An upper bound of the blocks that the requests may still take, without looking at any block."""
        groups = self.kv_cache_manager.num_kv_cache_groups
        extra = self.num_lookahead_tokens + self.num_spec_tokens + 1
        return sum(
            (cdiv(request.num_tokens + extra - request.num_computed_tokens, self.block_size) + 1) * groups
            for request in requests
        )

    def _needed_blocks(self, request: Request) -> int:
        """The blocks that must still be taken for the whole prompt and the next token, found as stock code does."""
        manager = self.kv_cache_manager
        cached, hit = manager.empty_kv_cache_blocks, 0
        if request.status != RequestStatus.RUNNING and not request.num_computed_tokens:
            cached, hit, _ = manager.get_computed_blocks(request)
        computed = request.num_computed_tokens + hit
        tokens = min(
            request.num_tokens + request.num_output_placeholders + self.num_lookahead_tokens, self.max_model_len
        )
        return manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=max(tokens, computed + 1),
            new_computed_blocks=cached.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=computed,
            num_local_computed_tokens=computed,
            num_tokens_main_model=max(request.num_tokens, computed + 1),
            apply_admission_cap=True,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
        )

    def _held_blocks(self, request: Request, stream: Stream | None, version: bool) -> int:
        held = stream.pins.exclusive_blocks if stream is not None else 0
        if version and request.status == RequestStatus.RUNNING and self._request_blocks_can_be_freed(request):
            groups = self.kv_cache_manager.get_blocks(request.request_id).blocks
            held += sum(block.ref_cnt == 1 for group in groups for block in group if not block.is_null)
        return held

    def _evict(self, step_plan: Plan) -> None:
        now = time.monotonic()
        for request_id in step_plan.parked:
            self._pause(self.requests[request_id], now)
            self.streams.statistics.parked += 1
        for victim in step_plan.evicted:
            stream = self._victim_stream(victim, now)
            self.eviction.give_up(*stream.pins.exclusive())
            stream.pins.release()

    def _victim_stream(self, victim: str, now: float) -> Stream:
        """The stream whose pins hold all that the victim must give up."""
        statistics = self.streams.statistics
        if victim.startswith(_IDLE):
            statistics.pins_evicted += 1
            return self.streams[victim.removeprefix(_IDLE)]
        request = self.requests[victim]
        if request.status == RequestStatus.RUNNING:
            self._pause(request, now)
            statistics.preempted += 1
        else:
            statistics.pins_evicted += 1
        stream = self.streams.owner(request)
        assert stream is not None
        return stream

    def _pause(self, request: Request, now: float) -> None:
        """Take a running version's sequence slot; its blocks stay with its stream."""
        stream = self.streams.owner(request)
        assert stream is not None
        stream.pins.take_over(request.request_id)
        self.running.remove(request)
        self._preempt_request(request, now)

    @contextmanager
    def _only_planned(self, step_plan: Plan) -> Iterator[None]:
        """Show stock `schedule()` complete requests first, then the planned versions; park who was not admitted."""
        place = {request_id: number for number, request_id in enumerate(step_plan.partials)}
        # Complete requests keep their order: theirs is -1, and sorting is stable.
        self.running.sort(key=lambda request: place.get(request.request_id, -1))
        handed = [self._parked.pop(request_id) for request_id in step_plan.partials if request_id in self._parked]
        for request in handed:
            self.waiting.add_request(request)
        try:
            yield
        finally:
            not_admitted = [request for request in handed if request.status in _READY]
            if not_admitted:
                self.waiting.remove_requests(not_admitted)
                self.kv_holding_waiting.remove_requests(not_admitted)
                self.deferred_waiting.difference_update(not_admitted)
                for request in not_admitted:
                    self._parked[request.request_id] = request


class ContextScheduler(_ContextStreams):
    """For synchronous scheduling (`--no-async-scheduling`)."""


class AsyncContextScheduler(_ContextStreams, AsyncScheduler):
    """For vLLM's default, asynchronous scheduling."""
