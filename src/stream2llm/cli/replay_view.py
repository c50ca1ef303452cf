"""What `stream2llm replay` shows: progress while it runs, the figures in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream2llm.workloads.measured import Measured
    from stream2llm.workloads.replay.recorder import Tally

SHOWN_EVERY_S = 0.25


def figures(measured: Measured) -> dict[str, Any]:
    """What `--json` prints."""
    from stream2llm.workloads.measured import SHARES, percentile_name

    ttft = {f"ttft_{percentile_name(share).lower()}_s": measured.quantile(share) for share in SHARES if measured.ttft}
    return {
        "arm": measured.run.arm.value,
        "queries": measured.run.queries,
        "arrived": len(measured.queries),
        "finished": len(measured.completion),
        "failed": measured.failed,
        "seconds": measured.total_seconds,
        "throughput": measured.throughput,
        **ttft,
        "token_scale": measured.run.settings["token_scale"],
        "time_scale": measured.run.time_scale,
        "work_ratio": measured.work_ratio,
        "counters": dict(measured.counters),
    }


def text(measured: Measured, out: Path) -> str:
    """What is printed without `--json`."""
    from stream2llm.workloads.measured import SHARES, percentile_name
    from stream2llm.workloads.replay.run import STOPPED

    run = measured.run
    stopped = sum(query.error == STOPPED for query in measured.queries)
    failed = measured.failed - stopped
    lines = [
        f"{run.arm.value}: {len(measured.completion)} of {run.queries} queries answered, {failed} failed"
        f"{f', {stopped} stopped' if stopped else ''}, in {measured.total_seconds:.1f} s"
    ]
    if measured.ttft:
        ttft = ", ".join(f"{percentile_name(share)} {measured.quantile(share):.3f} s" for share in SHARES)
        lines.append(f"time to first token: {ttft}")
    if measured.work_ratio is not None:
        lines.append(f"tokens computed over tokens needed: {measured.work_ratio:.3f}")
    lag = measured.counters.get("load_lag_p99_seconds", 0.0)
    lines.append(f"this load generator was {1e3 * lag:.1f} ms late at P99")
    errors = [query.error for query in measured.queries if query.error not in ("", STOPPED)]
    if errors:
        lines.append(f"the last error: {errors[-1]}")
    return "\n".join([*lines, f"written to {out}"])


@contextmanager
def progress(total: int) -> Iterator[Any]:
    """A line on standard error, if that is a terminal: queries that arrived, ended, failed, and the median TTFT."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    shown = bar.add_task("replay", total=total)
    watchers: list[asyncio.Task[None]] = []

    async def follow(tally: Tally) -> None:
        while True:
            bar.update(shown, completed=tally.finished + tally.failed, description=_description(tally), refresh=True)
            await asyncio.sleep(SHOWN_EVERY_S)

    try:
        with bar:
            yield lambda tally: watchers.append(asyncio.create_task(follow(tally)))
    finally:
        for watcher in watchers:
            watcher.cancel()


def _description(tally: Tally) -> str:
    from statistics import median

    failed = f", {tally.failed} failed" if tally.failed else ""
    ttft = f", TTFT {median(tally.ttfts):.3f} s" if tally.ttfts else ""
    return f"{tally.arrived} arrived{failed}{ttft}"
