"""What the planner is told about the engine: candidates, victims and budget, read from vLLM only as far as needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING

from vllm.utils.math_utils import cdiv
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from stream2llm.planner import Budget, Candidate, Plan, Victim, plan
from stream2llm.policy import Job
from stream2llm.ranking import FIRST, Rank
from stream2llm.vllm.stream import Stream

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

    from stream2llm.vllm.queue import PolicyQueue
    from stream2llm.vllm.scheduler import ContextStreams

READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
_FEW_STEPS, _FEW_VERSIONS = 4, 32
"""What streams may have waiting for their steps to be short; with more, the efficiency of full steps counts."""
_IDLE = "idle#"  # no request id has this form, so a stream's id, which a client may choose, cannot be taken for one


def idle_id(stream: Stream) -> str:
    """The id of a victim that has no request."""
    return _IDLE + stream.state.id


def stream_id(victim: str) -> str | None:
    """The stream of a victim that has no request."""
    return victim.removeprefix(_IDLE) if victim.startswith(_IDLE) else None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`exact`: every block was counted, and who is not served must not be admitted. `movable`: the running requests
    that the plan could park or put in another order."""

    plan: Plan
    exact: bool
    movable: list[Request]


class Survey:
    """Looks at the engine once per step.

    First with upper bounds of what everybody needs, which takes no look at any KV block; only where that is more than
    there is, with exact counts.
    """

    def __init__(self, scheduler: ContextStreams) -> None:
        self._scheduler = scheduler
        self._streams = scheduler.streams
        self._manager = scheduler.kv_cache_manager
        self._groups: int = self._manager.num_kv_cache_groups
        self._block_size: int = scheduler.block_size
        extra = scheduler.num_lookahead_tokens + scheduler.num_spec_tokens
        self._extra_tokens: int = extra + 1  # the most that a request computes beyond its tokens in a step
        self.short_step_tokens: float = scheduler.cost_profile.efficient_tokens()
        """The most that streams compute in a short step."""
        self._found: dict[str, set[int]] = {}  # by candidate: blocks in the cache that one other alone holds
        self._step_blocks = cdiv(self._extra_tokens, self._block_size) * self._groups

    def plan(self, context_tokens: Callable[[int, bool], float]) -> StepPlan:
        """The plan of this step. `context_tokens` tells the most that open streams may compute in it."""
        scheduler = self._scheduler
        versions = scheduler.running_versions
        prefills = [
            request
            for request in scheduler._inflight_prefills
            if request.request_id not in versions and request.status == RequestStatus.RUNNING
        ]
        movable = [*prefills, *versions.values()]
        decodes = len(scheduler.running) - len(movable)
        # A policy that treats streams like requests does not hold them back either.
        only_decodes = not prefills and not scheduler.home
        cap = context_tokens(decodes, only_decodes) if scheduler.context_policy.complete_first else math.inf
        if scheduler.context_policy.short_steps and self._streams_keep_up():
            cap = min(cap, self.short_step_tokens)
        rough = self._plan(movable, cap, exact=False)
        if not rough.short:
            return StepPlan(rough, False, movable)
        return StepPlan(self._plan(movable, cap, exact=True), True, movable)

    def _plan(self, movable: list[Request], context_tokens: float, exact: bool) -> Plan:
        self._found.clear()
        return plan(
            [self._running(request, exact) for request in movable],
            self._waiting(exact),
            self._parked(exact),
            self._victims() if exact else (),
            self._budget(movable, context_tokens, exact),
            self._overlap,
        )

    def _budget(self, movable: list[Request], context_tokens: float, exact: bool) -> Budget:
        scheduler = self._scheduler
        free = self._manager.block_pool.get_num_free_blocks()
        steady = len(scheduler.running) - len(movable)
        if exact:
            moving = set(map(id, movable))
            growth = sum(self._growth(request) for request in scheduler.running if id(request) not in moving)
            growth += sum(self._needed(request)[0] for request in scheduler.kv_holding_waiting)
        else:
            growth = steady * self._step_blocks
            growth += sum(self._most_needed(request, 0) for request in scheduler.kv_holding_waiting)
        return Budget(
            tokens=scheduler.max_num_scheduled_tokens - steady * (1 + scheduler.num_spec_tokens),
            slots=scheduler.max_num_active_reqs - scheduler.num_waiting_for_streaming_input - steady,
            blocks=free - growth,
            reserve=self._manager.watermark_blocks if scheduler.running else 0,
            context_tokens=context_tokens,
        )

    def _streams_keep_up(self) -> bool:
        """Whether what streams have waiting to be computed is a matter of a few steps."""
        scheduler = self._scheduler
        if len(scheduler.parked) > _FEW_VERSIONS:
            return False
        left = _FEW_STEPS * scheduler.max_num_scheduled_tokens
        for version in itertools.chain(scheduler.running_versions.values(), scheduler.parked):
            left -= version.num_tokens - max(version.num_computed_tokens, self.held_tokens(version))
            if left < 0:
                return False
        return True

    # Candidates

    def _running(self, request: Request, exact: bool) -> Candidate:
        stream = self._streams.owner(request)
        if request.skip_reading_prefix_cache:
            rank = FIRST  # parked, it would have to compute everything again
        else:
            rank = stream.rank if stream is not None else self._scheduler.context_policy.service(self.job(request))
        needed = self._needed(request)[0] if exact else self._most_needed(request, request.num_computed_tokens)
        remaining = request.num_tokens - request.num_computed_tokens
        return Candidate(rank, request.request_id, stream is not None, True, self._granted(remaining), needed)

    def _waiting(self, exact: bool) -> Iterator[Candidate]:
        """Complete requests that stock admission could get to, in its order."""
        scheduler = self._scheduler
        versions = scheduler.running_versions
        beside = (request for request in scheduler.running if request.request_id not in versions)
        for rank, request in self._not_skipped(scheduler.home, beside):
            yield self._candidate(rank, request, False, exact)

    def _parked(self, exact: bool) -> Iterator[Candidate]:
        for rank, request in self._not_skipped(self._scheduler.parked, self._scheduler.running):
            yield self._candidate(rank, request, True, exact)

    def _not_skipped(self, queue: PolicyQueue, beside: Iterable[Request]) -> Iterator[tuple[Rank, Request]]:
        """Those whom stock admission does not skip: for a grammar, for output that is still to come, for a LoRA adapter
        that finds no place `beside` the others."""
        if self._scheduler._pause_state != PauseState.UNPAUSED:
            return
        config = self._scheduler.lora_config
        loras = {request.lora_request.lora_int_id for request in beside if request.lora_request} if config else set()
        for rank, request in queue.ranked():
            if request.status not in READY or (request.num_stale_output_tokens and not request.drop_stale_output):
                continue
            if config and request.lora_request:
                lora = request.lora_request.lora_int_id
                if lora not in loras and len(loras) >= config.max_loras:
                    continue
                loras.add(lora)
            yield rank, request

    def _candidate(self, rank: Rank, request: Request, partial: bool, exact: bool) -> Candidate:
        if exact:
            needed, computed = self._needed(request)
        else:
            computed = self.held_tokens(request)
            needed = self._most_needed(request, computed)
        remaining = self._granted(request.num_tokens - computed)
        shares = exact and computed > self.held_tokens(request)
        return Candidate(rank, request.request_id, partial, False, remaining, needed, shares)

    def _granted(self, remaining: int) -> int:
        """What stock schedule() computes of a request in one step at the most."""
        threshold = self._scheduler.scheduler_config.long_prefill_token_threshold
        if threshold > 0 and self._scheduler.adaptive_long_prefill_threshold:
            threshold = max(
                threshold, self._scheduler.max_num_scheduled_tokens // max(1, len(self._scheduler.requests))
            )
        return min(remaining, threshold) if threshold > 0 else remaining

    def job(self, request: Request) -> Job:
        """What the policy is told about a complete request."""
        scheduler = self._scheduler
        ticket = scheduler.tickets[request.request_id]
        computed = request.num_computed_tokens or self.held_tokens(request)
        remaining = max(0, request.num_tokens - computed)
        running = request.status == RequestStatus.RUNNING
        return Job(
            complete=True,
            arrival=ticket.arrival,
            last_chunk=request.arrival_time,
            since=request.arrival_time,
            started=ticket.started,
            computed_tokens=computed,
            remaining_tokens=remaining,
            remaining_seconds=scheduler.observation.costs.prefill_seconds(remaining, computed),
            decoding=running and request not in scheduler._inflight_prefills,
            preemptions=request.num_preemptions,
            priority=request.priority,
        )

    def held_tokens(self, request: Request) -> int:
        """Tokens of a waiting request whose blocks are pinned for it: whole blocks, and not the last token."""
        pins = self._scheduler.pins_of(request)
        if pins is None:
            return 0
        return min(pins.tokens, (request.num_tokens - 1) // self._block_size * self._block_size)

    # KV blocks

    def _most_needed(self, request: Request, computed: int) -> int:
        """An upper bound of the blocks that the request may still take."""
        return (cdiv(request.num_tokens + self._extra_tokens - computed, self._block_size) + 1) * self._groups

    def _growth(self, request: Request) -> int:
        """The blocks that a decode takes in this step."""
        tokens = min(request.num_computed_tokens + self._extra_tokens, self._scheduler.max_model_len)
        return sum(
            max(0, cdiv(tokens, manager.block_size) - len(manager.req_to_blocks[request.request_id]))
            for manager in self._manager.coordinator.single_type_managers
        )

    def _needed(self, request: Request) -> tuple[int, int]:
        """The blocks that must still be taken for the whole prompt and the next token, and the tokens that are there,
        both found as stock admission does."""
        manager = self._manager
        cached, hit = manager.empty_kv_cache_blocks, 0
        if request.status != RequestStatus.RUNNING and not request.num_computed_tokens:
            cached, hit, _ = manager.get_computed_blocks(request)
        computed = request.num_computed_tokens + hit
        return self._to_allocate(request, cached, computed), computed

    def _to_allocate(self, request: Request, cached: KVCacheBlocks, computed: int) -> int:
        scheduler = self._scheduler
        tokens = min(
            request.num_tokens + request.num_output_placeholders + scheduler.num_lookahead_tokens,
            scheduler.max_model_len,
        )
        return self._manager.coordinator.get_num_blocks_to_allocate(
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

    def _overlap(self, candidate: str, victim: str) -> int:
        """The victim's own blocks that the candidate finds in the cache: once given up, it would have to take them."""
        found = self._found.get(candidate)
        if found is None:
            cached, _, _ = self._manager.get_computed_blocks(self._scheduler.requests[candidate])
            found = {block.block_id for group in cached.blocks for block in group if block.ref_cnt == 1}
            self._found[candidate] = found
        return sum(block.block_id in found for block in self._blocks_of(victim))

    def _blocks_of(self, victim: str) -> Iterator[KVCacheBlock]:
        idle = stream_id(victim)
        if idle is not None:
            yield from self._streams[idle].pins.blocks()
            return
        request = self._scheduler.requests[victim]
        pins = self._scheduler.pins_of(request)
        if pins is not None:
            yield from pins.blocks()
        if request.status == RequestStatus.RUNNING:
            for group in self._manager.get_blocks(victim).blocks:
                yield from group

    def fits(self, request: Request) -> bool:
        """Whether the request's prompt could be admitted if it had the KV cache to itself."""
        blocks = self._manager.block_pool.num_gpu_blocks - 1  # one is vLLM's null block
        if cdiv(request.num_tokens + 1, self._block_size) * self._groups <= blocks:
            return True
        return self._to_allocate(request, self._manager.empty_kv_cache_blocks, 0) <= blocks

    # Victims

    def _victims(self) -> Iterator[Victim]:
        if not self._scheduler.eviction.allowed:
            return
        policy = self._scheduler.context_policy
        if policy.complete_first:
            yield from (victim for _, victim in self._stream_victims())
            yield from (victim for _, victim in self._complete_victims())
        else:
            streams = ((policy.giving(stream.job), victim) for stream, victim in self._stream_victims())
            yield from (victim for _, victim in merge(streams, self._complete_victims()))

    def _stream_victims(self) -> Iterator[tuple[Stream, Victim]]:
        """Open streams that hold blocks, in the order of giving up."""
        for stream in self._streams.giving:
            live = stream.live
            blocks = stream.pins.exclusive_blocks
            if live is not None and live.status not in READY:
                if live.status != RequestStatus.RUNNING:
                    continue  # a connector is loading its blocks: it can be neither parked nor evicted
                blocks += self._exclusive_blocks(live)
            if blocks:
                id = live.request_id if live is not None else idle_id(stream)
                yield stream, Victim(stream.rank, id, blocks)

    def _complete_victims(self) -> Iterator[tuple[Rank, Victim]]:
        """Complete requests that hold blocks, in the order of giving up; the first of those that run gives up nothing,
        so that one always goes on."""
        policy = self._scheduler.context_policy
        holders = [(request, pins.exclusive_blocks) for request, pins in self._scheduler.waiting_holders()]
        versions = self._scheduler.running_versions
        running = [request for request in self._scheduler.running if request.request_id not in versions]
        found = []
        for request, blocks in holders:
            job = self.job(request)
            found.append((policy.giving(job), Victim(policy.service(job), request.request_id, blocks, False)))
        jobs = [self.job(request) for request in running]
        ranks = sorted((policy.giving(job), number) for number, job in enumerate(jobs))
        for giving, number in ranks[:-1]:
            request = running[number]
            if self._may_be_preempted(request):
                rank = policy.service(jobs[number]) if policy.preempts_running else FIRST
                found.append((giving, Victim(rank, request.request_id, self._exclusive_blocks(request), False)))
        found.sort(key=lambda pair: pair[0])
        return (pair for pair in found if pair[1].blocks)

    def _may_be_preempted(self, request: Request) -> bool:
        return not request.skip_reading_prefix_cache and bool(self._scheduler._request_blocks_can_be_freed(request))

    def _exclusive_blocks(self, request: Request) -> int:
        """The blocks of a running request that nobody else holds."""
        if not self._may_be_preempted(request):
            return 0
        groups = self._manager.get_blocks(request.request_id).blocks
        return sum(block.ref_cnt == 1 for group in groups for block in group if not block.is_null)
