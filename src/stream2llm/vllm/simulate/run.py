"""A trace played to a simulated engine: events in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from stream2llm.clock import VirtualClock
from stream2llm.vllm.simulate.engine import SimulatedEngine
from stream2llm.workloads.events import Arm, Counters, Event, What
from stream2llm.workloads.machines import Machine
from stream2llm.workloads.setup import Setup
from stream2llm.workloads.trace import Kind, Piece, Query

_START = 1e6  # of the virtual clock, in Unix seconds; 0 would stand for "never"


class Simulation:
    """One run. The queries arrive at `arrivals` (seconds from the start)."""

    def __init__(self, machine: Machine, setup: Setup, queries: Sequence[Query], arrivals: Sequence[float]) -> None:
        self._clock = VirtualClock(_START)
        self._setup = setup
        self.engine = SimulatedEngine(
            machine, setup.policy if setup.arm is Arm.STREAM else None, setup.preemption, self._clock
        )
        self._numbers = itertools.count()
        self._token_ids = itertools.count()
        self._due: list[tuple[float, int, Callable[[], Iterator[Event]]]] = []
        self._open: dict[str, str] = {}  # query by the id of its final request
        self._invalidated: dict[str, float] = {}
        for number, (query, arrival) in enumerate(zip(queries, arrivals, strict=True)):
            self._plan(f"{number}", query, arrival)
        self.needed_tokens = sum(query.tokens for query in queries)

    def run(self) -> Iterator[Event | Counters]:
        """Everything that happens, in order, and at the end what the engine counted."""
        while self._due or self.engine.has_work:
            if not self.engine.has_work:
                self._clock.now = max(self._clock.now, self._due[0][0])
            while self._due and self._due[0][0] <= self._clock.now:
                _, _, happen = heapq.heappop(self._due)
                yield from happen()
            if self.engine.has_work:
                yield from self._step()
        yield Counters(self._t, self.counters(), {"invalidated_tokens": self._invalidated})

    def counters(self) -> dict[str, float]:
        figures = {**self.engine.figures(), **self.engine.figures().get("host_tier", {})}
        numbers = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        return {**numbers, "tokens_needed": float(self.needed_tokens), "engine_steps": float(self.engine.steps)}

    @property
    def _t(self) -> float:
        return self._clock.now - _START

    def _step(self) -> Iterator[Event]:
        for request in self.engine.step().answered:
            query = self._open.pop(request, None)
            if query is not None:
                yield Event(self._t, query, What.FIRST)
                yield Event(self._t, query, What.END, tokens=1)

    def _at(self, when: float, happen: Callable[[], Iterator[Event]]) -> None:
        heapq.heappush(self._due, (_START + when, next(self._numbers), happen))

    def _plan(self, name: str, query: Query, arrival: float) -> None:
        """Enter what a query does into the calendar. Times of events are those at which they happen to the client.

        `name`: what the engine knows it by; a query's id might be what another's request is called.
        """
        self._at(arrival, lambda: iter((Event(arrival, query.id, What.ARRIVED),)))
        feed = _FEEDS[self._setup.arm](self.engine, name, query, self._token_ids)
        when = arrival + query.lead_s
        self._at(when, partial(self._begin, feed))
        last = len(query.operations) - 1
        for number, operation in enumerate(query.operations):
            when += operation.gap_s
            self._at(when, partial(self._send if number < last else self._ask, feed, query, number, when))

    @staticmethod
    def _begin(feed: _Feed) -> Iterator[Event]:
        feed.open()
        return iter(())

    def _send(self, feed: _Feed, query: Query, number: int, when: float) -> Iterator[Event]:
        with self._counting_invalidated(query):
            feed.send(number)
        yield Event(when, query.id, What.SENT, operation=number, tokens=len(feed.prompt))
        computed = feed.computed()
        if computed is not None:
            yield Event(self._t, query.id, What.ACKED, operation=number, computed=computed)

    def _ask(self, feed: _Feed, query: Query, number: int, when: float) -> Iterator[Event]:
        with self._counting_invalidated(query):
            self._open[feed.ask(number)] = query.id
        yield Event(when, query.id, What.LAST, operation=number, tokens=len(feed.prompt))

    @contextmanager
    def _counting_invalidated(self, query: Query) -> Iterator[None]:
        before = self.engine.invalidated_tokens
        yield
        lost = self.engine.invalidated_tokens - before
        if lost:
            self._invalidated[query.id] = self._invalidated.get(query.id, 0.0) + lost


class _Feed:
    """One query on its way into the engine. `prompt`: the token ids of what was handed over so far.

    A piece is one token id of its own, repeated: the scheduler only asks whether content differs.
    """

    def __init__(self, engine: SimulatedEngine, name: str, query: Query, token_ids: Iterator[int]) -> None:
        self.engine = engine
        self.name = name
        self.query = query
        self.prompt: list[int] = []
        self._token_ids = token_ids
        self._pieces: dict[str, list[int]] = {}

    def open(self) -> None:
        """The context begins: its opening is there. Tokens are made now, so that memory holds those of open queries."""
        self._pieces = {name: self._tokens(piece) for name, piece in self.query.pieces.items()}
        self.prompt = self._tokens(self.query.opening)

    def send(self, number: int) -> None:
        """An operation other than the last."""
        self._apply(number)

    def computed(self) -> int | None:
        """Tokens of the prompt whose KV is there, if the engine tells."""
        return None

    def ask(self, number: int) -> str:
        """The last operation, and the question with it; the id of the request."""
        self._apply(number)
        self.prompt = self.prompt + self._tokens(self.query.question)
        self._complete(self.name)
        return self.name

    def _complete(self, request: str) -> None:
        self.engine.complete(request, self.prompt)

    def _apply(self, number: int) -> int:
        """Change the prompt; how many of its tokens are kept."""
        operation = self.query.operations[number]
        new = [token for name in operation.pieces for token in self._pieces[name]]
        keep = len(self.prompt) if operation.op is Kind.APPEND else self.query.opening.length
        self.prompt = self.prompt[:keep] + new
        return keep

    def _tokens(self, piece: Piece) -> list[int]:
        return [next(self._token_ids)] * piece.length


class _Wait(_Feed):
    """Nothing is sent before the last operation."""


class _WarmUp(_Feed):
    """After each operation but the last, the prompt so far is sent with one token to generate."""

    def send(self, number: int) -> None:
        super().send(number)
        if self.prompt:
            self.engine.complete(f"{self.name}~{number}", self.prompt)


class _Stream(_Feed):
    """A context stream."""

    def open(self) -> None:
        super().open()
        self.engine.open(self.name, self.prompt)

    def send(self, number: int) -> None:
        keep = self._apply(number)
        self.engine.put(self.name, keep, self.prompt[keep:])

    def computed(self) -> int | None:
        return self.engine.computed_tokens(self.name)

    def _complete(self, request: str) -> None:
        self.engine.complete(request, self.prompt, stream=self.name)


_FEEDS = {Arm.STREAM: _Stream, Arm.WARM: _WarmUp, Arm.WAIT: _Wait}
