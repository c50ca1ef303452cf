from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from stepping import Engine, running_engine
from stream2llm.vllm.offload import host_tier
from stream2llm.vllm.offload.regions import block_regions
from stream2llm.vllm.offload.staged import StagedCopier


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
    """`Streams` for the CPU: copies to and from the host run beside the computation, as on a GPU, only slower.

    `computing` gives the computation a thread too, and who checks its work must wait for it.
    """

    def __init__(self, delay: Callable[[], float], computing: bool = False) -> None:
        self.compute = ThreadStream(delay) if computing else InlineStream()
        self.out = ThreadStream(delay)
        self.back = ThreadStream(delay)

    def synchronize(self) -> None:
        for stream in (self.out, self.back):
            assert stream.record().wait(60)

    def indices(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    def stop(self) -> None:
        for stream in (self.compute, self.out, self.back):
            if isinstance(stream, ThreadStream):
                stream.stop()


@pytest.fixture
def thread_streams() -> Iterator[Callable[..., ThreadStreams]]:
    made: list[ThreadStreams] = []

    def make(delay: Callable[[], float], computing: bool = False) -> ThreadStreams:
        made.append(ThreadStreams(delay, computing))
        return made[-1]

    yield make
    for streams in made:
        streams.stop()


# Finite, unlike NaN: the CPU's attention multiplies what lies behind the end of a sequence by zero, in stock vLLM too.
POISON = 1e4
HOST_BLOCKS = 40
BLOCKS = 97  # 96 blocks of 32 tokens: 3,072 tokens


class SwappingEngine:
    """The stepped CPU engine with the host tier, where the test decides who is evicted.

    What is evicted is taken out of the prefix cache too, so only the host has it; and each block that is handed out is
    poisoned as soon as the fence has been passed, so reading it before it is computed or loaded shows.
    """

    def __init__(self, engine: Engine) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.engine = engine
        self.scheduler = engine.scheduler
        host = host_tier(engine.scheduler.connector)
        worker = host_tier(get_kv_transfer_group())
        assert host is not None
        assert worker is not None
        self.host, self.worker = host, worker
        self.runner = engine.core.model_executor.driver_worker.worker.model_runner
        self._pool = engine.scheduler.kv_cache_manager.block_pool
        self._poison_new_blocks()

    def _poison_new_blocks(self) -> None:
        handed_out: list[int] = []
        get_new_blocks, fence = self._pool.get_new_blocks, self.worker.handle_preemptions

        def recorded(count: int) -> list[Any]:
            blocks = get_new_blocks(count)
            handed_out.extend(block.block_id for block in blocks)
            return blocks

        def poisoned(metadata: Any) -> None:
            fence(metadata)
            for cache in self.runner.kv_caches:
                cache[handed_out] = POISON
            handed_out.clear()

        self._pool.get_new_blocks = recorded
        self.worker.handle_preemptions = poisoned

    def evict_stream(self, stream_id: str) -> int:
        """Evict an idle stream; the number of blocks that the host will hold."""
        stream = next(stream for stream in self.scheduler.streams if stream.state.id == stream_id)
        blocks = [pin.block for pin in stream.pins._pins]
        return self._evict(blocks, stream.pins.release)

    def preempt(self, request_id: str) -> int:
        """Preempt a running request; the number of blocks that the host will hold."""
        request = self._request(request_id)
        (blocks,) = self.scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
        stream = self.scheduler.streams.owner(request)

        def release() -> None:
            self.scheduler.running.remove(request)
            self.scheduler._preempt_request(request, time.monotonic())
            if stream is not None:
                stream.pins.release()

        return self._evict(list(blocks), release)

    def _evict(self, blocks: list[Any], release: Callable[[], None]) -> int:
        lost = [block for block in blocks if block.ref_cnt == 1]
        kept = self.host.offload(lost)
        release()
        assert all(block.ref_cnt == 0 for block in lost)
        self._pool.evict_blocks({block.block_id for block in lost})
        return kept

    def _request(self, request_id: str) -> Any:
        """By its id, or by the id it was asked with, to which vLLM adds a random suffix."""
        requests = self.scheduler.requests
        return requests.get(request_id) or next(
            request for name, request in requests.items() if name.rpartition("-")[0] == request_id
        )

    def is_running(self, request_id: str) -> bool:
        return self._request(request_id) in self.scheduler.running

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    @property
    def idle(self) -> list[str]:
        """Streams that hold blocks and have nothing to compute."""
        return [stream.state.id for stream in self.scheduler.streams if stream.pins and stream.live is None]

    def cold(self, tokens: Sequence[int], max_tokens: int = 8) -> list[int]:
        """The answer with nothing in either cache."""
        self.engine.run()
        assert self.scheduler.reset_prefix_cache(reset_connector=True)
        return self.engine.cold(tokens, max_tokens)

    @contextmanager
    def slow_copies(self, delay: Callable[[], float]) -> Iterator[None]:
        """Copy as on a GPU, by streams beside the computation, each copy after a delay in seconds."""
        assert self.scheduler.reset_prefix_cache(reset_connector=True)
        direct = self.worker.copier
        config = self.runner.kv_cache_config
        layers = [layer for placement in config.kv_cache_tensors for layer in placement.layers]
        # Every layer's view is of the one allocation.
        regions = block_regions(config, dict.fromkeys(layers, self.runner.kv_caches[0]))
        host = torch.zeros(HOST_BLOCKS, sum(region.shape[1] for region in regions), dtype=torch.int8)
        streams = ThreadStreams(delay)
        self.worker.copier = StagedCopier(regions, host, streams, staging_bytes=4 * host.shape[1])
        try:
            yield
        finally:
            self.worker.copier.close()
            streams.stop()
            self.worker.copier = direct
            self.host.reset_cache()


@contextmanager
def swapping_engine(model: str, asynchronous: bool, transfer: dict[str, Any]) -> Iterator[SwappingEngine]:
    from vllm.config import KVTransferConfig

    config = KVTransferConfig(**transfer)
    with running_engine(model, asynchronous=asynchronous, blocks=BLOCKS, kv_transfer_config=config) as engine:
        yield SwappingEngine(engine)
        # It shuts the engine down once more when it is collected, and then ends what the next engine has started.
        engine.engine.engine_core._finalizer.detach()


OURS = {
    "kv_connector": "HostTierConnector",
    "kv_connector_module_path": "stream2llm.vllm.offload",
    "kv_role": "kv_producer",
    "kv_connector_extra_config": {"host_blocks": HOST_BLOCKS},
}


@pytest.fixture(scope="session")
def ours() -> dict[str, Any]:
    """Our connector's `KVTransferConfig`."""
    return OURS


@pytest.fixture(scope="session")
def start_swapping() -> Any:
    return swapping_engine


@pytest.fixture(scope="module", params=["asynchronous", "synchronous"])
def shared_swapping(request: pytest.FixtureRequest, model: str) -> Iterator[SwappingEngine]:
    with swapping_engine(model, request.param == "asynchronous", OURS) as swapping:
        yield swapping


@pytest.fixture
def swapping(shared_swapping: SwappingEngine) -> Iterator[SwappingEngine]:
    """An empty engine and an empty host tier; no KV block may be lost by what the test does."""
    free = shared_swapping.engine.free_blocks
    assert free == BLOCKS - 1
    yield shared_swapping
    shared_swapping.engine.settle()
    assert shared_swapping.engine.free_blocks == free, "KV blocks leaked"
    assert shared_swapping.scheduler.reset_prefix_cache(reset_connector=True)
