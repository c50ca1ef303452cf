from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch


class InlineStream:
    """Work is done when it is submitted, as the CPU engine computes."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self) -> threading.Event:
        event = threading.Event()
        event.set()
        return event

    def wait(self, event: threading.Event) -> None:
        assert event.wait(60)


class ThreadStream:
    """Work is done by a thread of its own, in order, each piece after a delay: an asynchronous stream on the CPU."""

    def __init__(self, delay: Callable[[], float]) -> None:
        self._delay = delay
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None]) -> None:
        self._work.put(lambda: time.sleep(self._delay()))
        self._work.put(work)

    def record(self) -> threading.Event:
        event = threading.Event()
        self._work.put(event.set)
        return event

    def wait(self, event: threading.Event) -> None:
        self._work.put(lambda: event.wait(60))

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(60)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class ThreadStreams:
    """`Streams` for the CPU: copies to and from the host run beside the computation, as on a GPU, only slower."""

    def __init__(self, delay: Callable[[], float]) -> None:
        self.compute = InlineStream()
        self.out = ThreadStream(delay)
        self.back = ThreadStream(delay)

    def synchronize(self) -> None:
        for stream in (self.out, self.back):
            assert stream.record().wait(60)

    def indices(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    def stop(self) -> None:
        self.out.stop()
        self.back.stop()


@pytest.fixture
def thread_streams() -> Iterator[Callable[[Callable[[], float]], Any]]:
    made: list[ThreadStreams] = []

    def make(delay: Callable[[], float]) -> ThreadStreams:
        made.append(ThreadStreams(delay))
        return made[-1]

    yield make
    for streams in made:
        streams.stop()
