"""Random histories under pressure on a real engine, each step of which is compared with its plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ownership import check_invariants
from stepping import MAX_NUM_SEQS, Engine, tokens


class Watch:
    """Compares each plan with what became of it."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.plans = self.exact = self.taken = self.parked = 0
        self._step: Any = None
        self._preempted_by_stock: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        scheduler = self.scheduler
        originals = {name: getattr(scheduler, name) for name in ("schedule", "_preempt", "_preempt_request")}
        for name in originals:
            setattr(scheduler, name, getattr(self, name))
        self._originals = originals
        plan = scheduler.survey.plan
        scheduler.survey.plan = lambda cap: self._remember(plan(cap))
        try:
            yield
        finally:
            del scheduler.survey.plan
            for name in originals:
                delattr(scheduler, name)

    def _remember(self, step: Any) -> Any:
        self._step = step
        return step

    def _preempt(self, plan: Any) -> None:
        pool = self.scheduler.kv_cache_manager.block_pool
        free = pool.get_num_free_blocks()
        running = {request.request_id for request in self.scheduler.running}
        self._originals["_preempt"](plan)
        paused = len(running & {*plan.parked, *(taken.id for taken in plan.taken)})
        given = pool.get_num_free_blocks() - free
        wanted = sum(taken.blocks for taken in plan.taken)
        # A request that is paused also gives back blocks that are not full: nobody could find them again.
        assert wanted <= given <= wanted + 2 * paused
        assert not {*plan.parked} & {request.request_id for request in self.scheduler.running}
        self.taken += wanted
        self.parked += len(plan.parked)
        self._preempted_by_stock.clear()

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        self._preempted_by_stock.append(request.request_id)
        self._originals["_preempt_request"](request, *args, **kwargs)

    def schedule(self, *args: Any) -> Any:
        self._step = None
        scheduler = self.scheduler
        before = {request.request_id for request in scheduler.running}
        output = self._originals["schedule"](*args)
        if self._step is None:
            return output
        plan, scheduled = self._step.plan, output.num_scheduled_tokens
        self.plans += 1
        self.exact += self._step.exact
        if self._step.exact:
            admitted = {request.request_id for request in scheduler.running} - before
            assert admitted <= {*plan.served}
            assert not self._preempted_by_stock, "stock schedule() had to preempt"
        for request_id in plan.served:
            request = scheduler.requests[request_id]
            # A request whose output of the step under way is still to come cannot go on in this one.
            done = request_id in scheduled or request.num_stale_output_tokens or not _remaining(request)
            assert done, (self._step, scheduled)
        versions = {id for id in scheduled if scheduler.streams.is_version(scheduler.requests[id])}
        # Every decode is counted; one that has reached its end leaves its token to a stream that runs.
        assert sum(scheduled[id] for id in versions - {*plan.served}) <= len(before)
        assert len(scheduler.running) <= MAX_NUM_SEQS
        return output


def _remaining(request: Any) -> int:
    return int(request.num_tokens - request.num_computed_tokens)


def run_random_history(engine: Engine, watch: Watch, rng: random.Random) -> None:
    streams: dict[str, list[int]] = {}
    asked: list[tuple[str, list[int], int]] = []
    with watch.watching():
        for number in range(70):
            op = rng.choice(["open", "open", "append", "append", "replace", "finish", "plain", "step"])
            if op == "open" and len(streams) < 8:
                streams[f"s{number}"] = tokens(rng, rng.randint(100, 1500))
                engine.open(f"s{number}", streams[f"s{number}"])
            elif op in ("append", "replace") and streams:
                name = rng.choice(list(streams))
                kept = streams[name][: None if op == "append" else rng.randint(0, len(streams[name]))]
                streams[name] = [*kept, *tokens(rng, rng.randint(0, 500))][:1900]
                engine.put(name, streams[name], keep=min(len(kept), 1900))
            elif op == "finish" and streams:
                name = rng.choice(list(streams))
                prompt, answer = [*streams.pop(name), *tokens(rng, 9)], rng.choice([1, 8, 40])
                asked.append((engine.ask(prompt, name, max_tokens=answer), prompt, answer))
            elif op == "plain":
                prompt, answer = tokens(rng, rng.randint(1, 1200)), rng.choice([1, 8, 40])
                asked.append((engine.ask(prompt, max_tokens=answer), prompt, answer))
            engine.step(rng.randint(0, 9))
            check_invariants(engine)
        engine.run()
    assert all(len(engine.answer(request)) == answer for request, _, answer in asked)
    for name in streams:
        engine.close(name)
    for request, prompt, answer in asked[:: max(1, len(asked) // 5)]:
        assert engine.answer(request) == engine.cold(prompt, max_tokens=answer)
