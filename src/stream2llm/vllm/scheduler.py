"""Phase 2: carry a plan out, then let stock `schedule()` run on queues that hold only what was planned.

Subclasses of vLLM's schedulers through one mixin (`--scheduler-cls stream2llm.vllm.scheduler.AsyncContextScheduler`).
Stock code does all allocation, LoRA, encoder, speculative-decoding and connector work. While no stream is open, stock
`schedule()` runs as it is, on a queue in the policy's order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from stream2llm.clock import Clock, SystemClock
from stream2llm.costs import CostProfile
from stream2llm.planner import Plan, Taken
from stream2llm.policy import Policy, policy
from stream2llm.policy.prioritised import Prioritised
from stream2llm.ranking import Rank
from stream2llm.vllm.eviction import Eviction
from stream2llm.vllm.observation import Observation
from stream2llm.vllm.options import Options
from stream2llm.vllm.pins import KeptBlocks, Pins
from stream2llm.vllm.queue import PolicyQueue
from stream2llm.vllm.streams import StreamTable
from stream2llm.vllm.subject import costs_for
from stream2llm.vllm.survey import READY, StepPlan, Survey, stream_id

logger = init_logger("vllm.stream2llm.scheduler")


@dataclass(slots=True)
class Ticket:
    """When a complete request came (a final request: its stream), was asked for (monotonic) and was last admitted."""

    arrival: float
    asked_at: float
    started: float = 0.0


class ContextStreams(Scheduler):
    """The mixin. A version's request waits in `parked`, not in the engine's own queues: it is handed to them for the
    steps in which the plan lets it be computed."""

    max_num_scheduled_tokens: int
    clock: Clock = SystemClock()
    """Of the class, since vLLM makes the scheduler; a simulation's subclass has another."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.cache_config.enable_prefix_caching:
            raise ValueError(
                "context streams need prefix caching: a stream's versions find each other's KV blocks through it. "
                "Start the server without --no-enable-prefix-caching, or without this scheduler."
            )
        options = Options.of(self.vllm_config)
        chosen = policy(options.policy)
        self.context_policy: Policy = Prioritised(chosen) if self.policy == SchedulingPolicy.PRIORITY else chosen
        self.streams = StreamTable(self, self.context_policy, self.clock)
        self.eviction = Eviction.of(options, self.connector, self.block_size)
        self.cost_profile = self._profile(options)
        correct = options.correction and self.eviction.decides
        self.observation = Observation(self.cost_profile, options.itl_factor, correct, self.num_spec_tokens)
        self.tickets: dict[str, Ticket] = {}
        self.parked = PolicyQueue(self._rank)
        self.home = PolicyQueue(self._rank)
        """Where complete requests wait; `waiting` is this queue except while stock `schedule()` is shown a plan."""
        self.waiting: RequestQueue = self.home
        self.running_versions: dict[str, Request] = {}
        self._kept = KeptBlocks(self.kv_cache_manager)
        self.survey = Survey(self)
        self._parked_may_run = False  # something changed since the plan last left all of them parked

    def _profile(self, options: Options) -> CostProfile:
        """What steps and copies are reckoned to take."""
        return costs_for(self.vllm_config, options.profile)

    def _rank(self, request: Request) -> Rank:
        stream = self.streams.owner(request)
        version = stream is not None and stream.live is request
        return stream.rank if stream is not None and version else self.context_policy.service(self.survey.job(request))

    def pins_of(self, request: Request) -> Pins | None:
        """The blocks that are pinned for a request that waits."""
        stream = self.streams.owner(request)
        return stream.pins if stream is not None else self._kept.of(request.request_id)

    def waiting_holders(self) -> list[tuple[Request, Pins]]:
        """The complete requests that wait and have blocks pinned for them."""
        finals = [(stream.final, stream.pins) for stream in self.streams.finals() if stream.final is not None]
        return finals + [(self.requests[request_id], pins) for request_id, pins in self._kept.items()]

    # Requests come and go

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests and not self.streams.is_version(request):
            params = request.sampling_params
            named = (params.extra_args or {}).get("context_stream") if params is not None else None
            opened_at = self.streams.finish(named, request) if isinstance(named, str) else None
            arrival = request.arrival_time if opened_at is None else opened_at
            self.tickets[request.request_id] = Ticket(arrival, self.clock.monotonic())
        super().add_request(request)
        if not self.survey.fits(request):
            # vLLM would keep it waiting for ever. It ends such requests with an error when the next step is done.
            logger.error(
                "request %s needs more KV blocks than there are (%d): shorten the prompt, or start the server with "
                "more memory for the KV cache",
                request.request_id,
                self.kv_cache_manager.block_pool.num_gpu_blocks - 1,
            )
            self.grammar_compile_error_reqs.add(request.request_id)

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
            self.running_versions.pop(request.request_id, None)
            self.streams.preempted(request)
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
        self.parked.remove_request(request)
        self.running_versions.pop(request.request_id, None)
        self.tickets.pop(request.request_id, None)
        self._kept.release(request.request_id)
        self.streams.freeing(request)
        super()._free_blocks(request)
        self._parked_may_run = True

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self._release_all_pins()
        return super().reset_prefix_cache(reset_running_requests, reset_connector)

    def set_pause_state(self, pause_state: PauseState) -> None:
        super().set_pause_state(pause_state)
        self._parked_may_run = True

    def get_num_unfinished_requests(self) -> int:
        """Parked versions count while they may be able to run; else the engine sleeps, though they wait for memory."""
        may_run = self._parked_may_run and self._pause_state == PauseState.UNPAUSED
        return super().get_num_unfinished_requests() + (len(self.parked) if may_run else 0)

    def has_finished_requests(self) -> bool:
        if self.finished_req_ids or self.connector is None:
            return bool(self.finished_req_ids)
        # As in stock code: finished requests wait for the connector. Parked ones are in `requests` too.
        return len(self.requests) > sum(self.get_request_counts()) + len(self.parked)

    def _park(self, request: Request) -> None:
        self.parked.add_request(request)
        self._parked_may_run = True

    def streams_changed(self) -> None:
        """An op let go of blocks without freeing a request, or a stream's rank changed."""
        self._parked_may_run = True

    def rerank(self, version: Request) -> None:
        """The stream of a version has changed."""
        self.parked.rerank(version)

    # One step

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.observation.step_begins()
        if not self.streams and not self._kept:
            output = super().schedule(throttle_prefills)
            self._scheduled(output)
            return output
        started = time.perf_counter()
        self.streams.expire()
        self._unblock()
        step = self.survey.plan(self.observation.context_tokens)
        self._preempt(step.plan)
        statistics = self.streams.statistics
        statistics.steps += 1
        statistics.plan_seconds += time.perf_counter() - started
        tokens = self.max_num_scheduled_tokens
        offered = self._show(step)
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self._put_back(offered, tokens)
        self._scheduled(output)
        # Who is left parked waits for a change; until one comes the engine may sleep. A throttled step decided nothing.
        self._parked_may_run = throttle_prefills
        if not output.total_num_scheduled_tokens and not throttle_prefills:
            self._break_stall()
        return output

    def _unblock(self) -> None:
        """Let requests that wait for their grammar take part in the plan once they have it: stock `schedule()` looks at
        them only while it has tokens to give."""
        for request in self.deferred_waiting:
            if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
                self._handle_blocked_waiting_request(request)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        self.observation.step_ends(scheduler_output)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _scheduled(self, output: SchedulerOutput) -> None:
        """Note who was admitted, and what the step computes."""
        scheduled = output.num_scheduled_tokens
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        if output.scheduled_new_reqs or resumed:
            now, monotonic = self.clock.time(), self.clock.monotonic()
            for request_id in (*(request.req_id for request in output.scheduled_new_reqs), *resumed):
                self._admitted(self.requests[request_id], now, monotonic)
        versions = [scheduled[request_id] for request_id in self.running_versions if request_id in scheduled]
        self.streams.statistics.tokens_computed += output.total_num_scheduled_tokens
        self.streams.statistics.context_tokens_computed += sum(versions)
        if self.observation.wanted:
            self.observation.scheduled(output, versions, self.requests)

    def _admitted(self, request: Request, now: float, monotonic: float) -> None:
        """It holds its own references to blocks now, so pins have done their work."""
        request_id = request.request_id
        if self.streams.admitted(request, now) is not None:
            self.running_versions[request_id] = request
            return
        self._kept.release(request_id)
        ticket = self.tickets[request_id]
        if not ticket.started:
            self.streams.statistics.waits.add(monotonic - ticket.asked_at)
        ticket.started = now

    def _break_stall(self) -> None:
        """The last resort of progress: if complete requests wait and nothing runs, no stream keeps a block.

        It should not come to this. But a plan is made of numbers that vLLM is free to see otherwise, and an engine that
        waits for ever for blocks that streams hold would be worse than any recompute.
        """
        waiting = any(
            request.status in READY
            and not request.num_stale_output_tokens
            and request.request_id not in self.grammar_compile_error_reqs  # it ends with this step
            for request in self.waiting
        )
        # Requests whose blocks are being loaded, and sessions that keep their slot, will go on by themselves.
        busy = self.running or self.kv_holding_waiting or self.num_waiting_for_streaming_input
        holds = self._kept or self.streams.holds_blocks
        if waiting and not busy and self._pause_state == PauseState.UNPAUSED and holds:
            logger.warning("no request could be scheduled; taking the KV blocks of all context streams")
            self.streams.statistics.stalls += 1
            self._release_all_pins()

    def _release_all_pins(self) -> None:
        self.streams.release_all_pins()
        self._kept.release_all()
        self._parked_may_run = True

    def context_figures(self) -> dict[str, Any]:
        """For the statistics op."""
        return {
            "policy": self.context_policy.name,
            **self.streams.figures(),
            **self.eviction.figures(),
            **self.observation.figures(),
        }

    # Carrying a plan out

    def _preempt(self, step_plan: Plan) -> None:
        now = self.clock.monotonic()
        statistics = self.streams.statistics
        for request_id in step_plan.parked:
            version = self._pause(self.requests[request_id], now)
            statistics.parked += version
            statistics.parked_complete += not version
        for taken in step_plan.taken:
            pins = self._pins_of_victim(taken, now)
            self.eviction.give_up(*pins.tail(taken.blocks), self.observation.costs)
            pins.shrink(taken.blocks)
            if taken.id in self.tickets:
                self.home.rerank(self.requests[taken.id])

    def _pins_of_victim(self, taken: Taken, now: float) -> Pins:
        """The pins that hold all that the victim can give up."""
        statistics = self.streams.statistics
        idle = stream_id(taken.id)
        if idle is not None:
            statistics.pins_evicted += 1
            return self.streams[idle].pins
        request = self.requests[taken.id]
        if request.status == RequestStatus.RUNNING:
            version = self._pause(request, now)
            statistics.preempted += version
            statistics.preempted_complete += not version
        else:
            statistics.pins_evicted += 1
        pins = self.pins_of(request)
        assert pins is not None
        return pins

    def _pause(self, request: Request, now: float) -> bool:
        """Take a running request's sequence slot; its blocks stay pinned for it. Whether it is a version."""
        stream = self.streams.owner(request)
        if stream is not None:
            stream.pins.take_over(request.request_id)
        else:
            self._kept.keep(request.request_id)
        self.running.remove(request)
        self._preempt_request(request, now)
        return stream is not None

    def _show(self, step: StepPlan) -> list[Request]:
        """Show stock `schedule()` running requests in the order of the plan, then those to be admitted, which are
        returned.

        An exact plan counted every block, so only those that it serves are shown; else all complete requests are, and
        stock code admits as many as it can.
        """
        served = [self.requests[request_id] for request_id in step.plan.served]
        self._order_running(served, step.movable)
        offered = [request for request in served if request.status in READY]
        if step.exact or not self.home:
            self.waiting = FCFSRequestQueue(offered)
        else:
            for request in offered:
                self.home.add_request(request)
        streams = bool(self.running_versions) or any(self.streams.is_version(request) for request in offered)
        if step.plan.context_limited and streams and not self.kv_holding_waiting:
            self.max_num_scheduled_tokens -= step.plan.tokens_left
        return offered

    def _put_back(self, offered: list[Request], tokens: int) -> None:
        """Who was not admitted waits where it waited before; whom stock code preempted waits at home."""
        self.max_num_scheduled_tokens = tokens
        shown, self.waiting = self.waiting, self.home
        for request in offered:
            admitted = request.status not in READY
            if self.streams.is_version(request):
                if admitted:
                    self.parked.remove_request(request)
                else:
                    self.home.remove_request(request)
                    self.deferred_waiting.discard(request)
            elif admitted and request not in shown:
                self.home.remove_request(request)
        if shown is not self.home:
            for request in shown:
                if not self.streams.is_version(request) and request not in self.home:
                    self.home.add_request(request)

    def _order_running(self, served: list[Request], movable: list[Request]) -> None:
        """What runs on in any case first, then what the plan serves, in its order, then what gets no token."""
        left = {id(request): request for request in movable if request.status == RequestStatus.RUNNING}
        if not left:
            return
        ordered = [left.pop(id(request)) for request in served if id(request) in left]
        ordered += left.values()
        if self.running[-len(ordered) :] != ordered:
            places = set(map(id, ordered))
            self.running[:] = [request for request in self.running if id(request) not in places] + ordered


class ContextScheduler(ContextStreams):
    """For synchronous scheduling (`--no-async-scheduling`)."""


class AsyncContextScheduler(ContextStreams, AsyncScheduler):
    """For vLLM's default, asynchronous scheduling."""
