"""Copies KV blocks to and from pinned host memory beside the device's computation.

Out: the blocks are gathered into a staging buffer by the stream that computes, so after the step that wrote them and
before the step that overwrites them; another stream copies the buffer to the host, while the computation goes on.
Back: a third stream copies from the host to a staging buffer, the computing stream waits for it and scatters.
In the host memory a slot holds the bytes of all layers together, so that a copy over the bus is long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol

import torch

from stream2llm.vllm.offload.copies import BlockCopy, runs
from stream2llm.vllm.offload.regions import Regions

_STAGING_BYTES = 32 << 20  # of each of four buffers: two for each direction, so that filling and emptying overlap


class Stream(Protocol):
    """Work in order of submission, beside that of other streams. Events are opaque."""

    def run(self, work: Callable[[], None]) -> None: ...

    def record(self) -> Any:
        """An event that is reached once all work submitted so far is done."""

    def wait(self, event: Any) -> None:
        """Hold what is submitted from now on until the event is reached."""


class Streams(Protocol):
    """The stream that computes in the engine, and one for each direction."""

    @property
    def compute(self) -> Stream: ...

    @property
    def out(self) -> Stream: ...

    @property
    def back(self) -> Stream: ...

    def synchronize(self) -> None:
        """Return when all work submitted to `out` and `back` is done."""

    def indices(self, values: Sequence[int]) -> torch.Tensor:
        """Row numbers on the device, int64, for work of the computing stream."""


@dataclass(slots=True)
class _Stage:
    buffer: torch.Tensor  # (blocks, bytes of a block over all regions)
    empty: Any = None  # event: what was in the buffer has been copied on


class StagedCopier:
    """A `Copier` for a KV cache in device memory.

    Why no copy is ever wrong, by hazard:

    - *a block is overwritten while it is copied out*: it is gathered in the computing stream's own order;
    - *a slot is loaded before it is written*: `back` waits for the copies out of earlier steps, and for those of this
      step if they write one of the slots it reads;
    - *a slot is overwritten while it is loaded*: a step computes after its loads, and the next step's copies out wait
      for the gathering, which comes after that computation;
    - *a buffer is filled before it is emptied*: whoever fills it waits for its `empty` event.
    """

    def __init__(
        self,
        regions: Regions,
        memory: torch.Tensor,
        streams: Streams,
        staging_bytes: int = _STAGING_BYTES,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """`memory` is int8, (slots, bytes of a block over all regions), pinned if the device needs it."""
        sizes = [region.shape[1] for region in regions]
        # Eight bytes at a time are gathered several times as fast as single ones.
        word = torch.int64 if all(_in_words(region) for region in regions) else torch.int8
        width = word.itemsize
        ends = [sum(sizes[: index + 1]) // width for index in range(len(sizes))]
        self._regions = [
            (region.view(word), end - size // width, end)
            for region, size, end in zip(regions, sizes, ends, strict=True)
        ]
        self._memory = memory.view(word)
        self._streams = streams
        self._chunk = max(1, staging_bytes // sum(sizes))
        stages = [_Stage(torch.empty(self._chunk, ends[-1], dtype=word, device=regions[0].device)) for _ in range(4)]
        self._out_stages, self._back_stages = cycle(stages[:2]), cycle(stages[2:])
        self._written: set[int] = set()  # slots that this step writes
        self._written_by: Any = None  # event: this step's copies out are done
        self._written_before: Any = None  # event: those of earlier steps are done
        self._on_close = on_close

    def copy_out(self, copies: Sequence[BlockCopy]) -> None:
        if self._written:
            self._written_before = self._written_by
        self._written = {copy.slot for copy in copies}
        compute, out = self._streams.compute, self._streams.out
        for chunk in self._chunks(copies):
            stage = next(self._out_stages)
            if stage.empty is not None:
                compute.wait(stage.empty)
            compute.run(self._gather(chunk, stage.buffer))
            out.wait(compute.record())
            out.run(self._to_host(chunk, stage.buffer))
            stage.empty = out.record()
            self._written_by = stage.empty

    def copy_back(self, copies: Sequence[BlockCopy]) -> None:
        compute, back = self._streams.compute, self._streams.back
        written = self._written_before
        if not self._written.isdisjoint(copy.slot for copy in copies):
            written = self._written_by
        if copies and written is not None:
            back.wait(written)
        for chunk in self._chunks(copies):
            stage = next(self._back_stages)
            if stage.empty is not None:
                back.wait(stage.empty)
            back.run(self._from_host(chunk, stage.buffer))
            compute.wait(back.record())
            compute.run(self._scatter(chunk, stage.buffer))
            stage.empty = compute.record()

    def close(self) -> None:
        self._streams.synchronize()
        self._on_close()

    def _chunks(self, copies: Sequence[BlockCopy]) -> Iterator[Sequence[BlockCopy]]:
        for start in range(0, len(copies), self._chunk):
            yield copies[start : start + self._chunk]

    def _gather(self, copies: Sequence[BlockCopy], buffer: torch.Tensor) -> Callable[[], None]:
        @torch.inference_mode()
        def work() -> None:
            rows = self._streams.indices([copy.block for copy in copies])
            for region, start, end in self._regions:
                buffer[: len(copies), start:end] = region.index_select(0, rows)

        return work

    def _scatter(self, copies: Sequence[BlockCopy], buffer: torch.Tensor) -> Callable[[], None]:
        @torch.inference_mode()
        def work() -> None:
            rows = self._streams.indices([copy.block for copy in copies])
            for region, start, end in self._regions:
                region.index_copy_(0, rows, buffer[: len(copies), start:end])

        return work

    def _to_host(self, copies: Sequence[BlockCopy], buffer: torch.Tensor) -> Callable[[], None]:
        @torch.inference_mode()
        def work() -> None:
            for row, slot, count in _rows(copies):
                self._memory[slot : slot + count].copy_(buffer[row : row + count], non_blocking=True)

        return work

    def _from_host(self, copies: Sequence[BlockCopy], buffer: torch.Tensor) -> Callable[[], None]:
        @torch.inference_mode()
        def work() -> None:
            for row, slot, count in _rows(copies):
                buffer[row : row + count].copy_(self._memory[slot : slot + count], non_blocking=True)

        return work


def _rows(copies: Sequence[BlockCopy]) -> Iterator[tuple[int, int, int]]:
    """The slots of the buffer's rows, neighbours joined."""
    return runs([(row, copy.slot) for row, copy in enumerate(copies)])


def _in_words(region: torch.Tensor) -> bool:
    return all(number % 8 == 0 for number in (region.data_ptr(), region.stride(0), region.shape[1]))
