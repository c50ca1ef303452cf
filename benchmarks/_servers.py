"""The servers that benchmarks measure: those of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import serving
from tiny_model import MAX_TOKENS, tiny_model

__all__ = ["MAX_TOKENS", "engine_cores", "serving", "tiny_model"]


def engine_cores(count: int) -> dict[str, str]:
    """The environment of an engine on the CPU that leaves the other cores to server and clients."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    return {"OMP_NUM_THREADS": str(len(cores)), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
