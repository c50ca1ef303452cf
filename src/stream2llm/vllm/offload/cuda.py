"""CUDA streams and pinned memory for `StagedCopier` (ROCm's too: PyTorch names them alike)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class CudaStream:
    """One CUDA stream; None: the one that the engine computes on at the time of the call."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self._stream = stream

    def run(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._now()):
            work()

    def record(self) -> Any:
        return self._now().record_event()

    def wait(self, event: Any) -> None:
        self._now().wait_event(event)

    def synchronize(self) -> None:
        self._now().synchronize()

    def _now(self) -> Any:
        return self._stream if self._stream is not None else torch.cuda.current_stream()


class CudaStreams:
    """The computing stream, and two that yield to it where the device has to choose."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.compute = CudaStream()
        self.out = CudaStream(torch.cuda.Stream(device))
        self.back = CudaStream(torch.cuda.Stream(device))

    def synchronize(self) -> None:
        self.out.synchronize()
        self.back.synchronize()

    def indices(self, values: Sequence[int]) -> torch.Tensor:
        # From pinned memory: a copy from pageable memory would make the host wait for the computation under way.
        return torch.tensor(values, dtype=torch.int64, pin_memory=True).to(self._device, non_blocking=True)


def pinned_memory(slots: int, slot_bytes: int) -> torch.Tensor:
    """Host memory that the device copies from and to by itself, int8 (slots, bytes), all of it committed.

    Registered with CUDA rather than allocated by PyTorch, which would round it up to a power of two.
    """
    memory = torch.zeros(slots, slot_bytes, dtype=torch.int8)
    error = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error):
        raise MemoryError(
            f"CUDA cannot pin {memory.nbytes / (1 << 30):.2f} GiB of host memory for the host tier ({error}): "
            "lower host_gib or host_blocks, or raise the limit of locked memory (ulimit -l)"
        )
    return memory


def unpin(memory: torch.Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
