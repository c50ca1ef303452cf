"""When the queries of a run arrive: a Poisson process by seed, or gaps from a file. Pure, but for reading the file."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from stream2llm.workloads.lines import FormatError


def poisson(qps: float, seed: int, count: int) -> tuple[float, ...]:
    """`count` arrivals in seconds from the run's start, `qps` a second in the mean; the first after a gap, too.

    The same seed gives the same arrivals at every rate, only closer together, so that a sweep over rates compares like
    with like. Raises `ValueError`.
    """
    if not (qps > 0 and math.isfinite(qps)):
        raise ValueError(f"`qps` is {qps}; it must be a number above 0")
    if count < 0:
        raise ValueError(f"`count` is {count}; it must be 0 or more")
    draws = random.Random(seed)
    return from_gaps(draws.expovariate(1.0) / qps for _ in range(count))


def from_gaps(gaps: Iterable[float]) -> tuple[float, ...]:
    """Arrivals in seconds from the run's start, from the gaps before each of them."""
    return tuple(accumulate(gaps))


def read_gaps(path: Path) -> tuple[float, ...]:
    """The gaps in a file: a number of seconds a line, before each arrival; empty lines and `# ...` are skipped.

    Raises `FormatError` with the line, and `OSError`.
    """
    gaps = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if text := line.split("#", 1)[0].strip():
                gaps.append(_seconds(text, f"{path}, line {number}"))
    if not gaps:
        raise FormatError(f"{path}: there is no gap in it; it must have a number of seconds on each line")
    return tuple(gaps)


def _seconds(text: str, where: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise FormatError(f"{where}: {text[:40]!r} is not a number; a gap is a number of seconds") from None
    if not (0 <= seconds < math.inf):
        raise FormatError(f"{where}: the gap is {text}; it must be 0 or more seconds")
    return seconds
