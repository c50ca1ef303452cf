"""The servers that benchmarks measure: those of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psutil

import serving
from tiny_model import MAX_TOKENS, tiny_model

__all__ = ["MAX_TOKENS", "engine_cores", "serving", "set_apart", "tiny_model"]


def engine_cores(count: int) -> dict[str, str]:
    """The environment of an engine on the CPU that leaves the other cores to server and clients."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    return {"OMP_NUM_THREADS": str(len(cores)), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}


def set_apart(count: int) -> None:
    """Keep servers' other processes, and this process with its children to come, off the engine's first `count` cores.

    `engine_cores` binds the engine's compute threads; with this nobody else takes their time, as on a machine whose
    engine runs on a GPU. Does nothing where that would leave no core.
    """
    cores = sorted(os.sched_getaffinity(0))
    engine, others = cores[:count], cores[count:]
    if not others:
        return
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        is_engine = process.cmdline()[:1] and process.cmdline()[0].startswith("VLLM::")
        for thread in process.threads():
            os.sched_setaffinity(thread.id, engine if is_engine else others)
