"""Pictures: what each shows, and how it becomes a PNG. Needs matplotlib, and no display."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from stream2llm.costs import CostProfile
from stream2llm.workloads.comparison import Cell, Row
from stream2llm.workloads.events import Clock
from stream2llm.workloads.measured import percentile_name
from stream2llm.workloads.report import costs, distributions, sweep
from stream2llm.workloads.report.style import Theme
from stream2llm.workloads.report.summary import SIMULATED
from stream2llm.workloads.report.timeline import Panel, draw_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 170


@dataclass(frozen=True, slots=True)
class Picture:
    """`name`: the file's, without ending, not unique among several machines and models;
    `about`: what is to be seen, also for those who cannot see it.
    """

    name: str
    title: str
    about: str
    draw: Callable[[Theme], Figure]


def png(picture: Picture, theme: Theme) -> bytes:
    """The picture on a page of this theme, in 128 colours: a third of the bytes."""
    from matplotlib import rc_context
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    settings: Any = theme.settings  # matplotlib's stubs want each key as a literal
    with rc_context(settings):
        picture.draw(theme).savefig(drawn, format="png", dpi=DOTS_PER_INCH)
    Image.open(drawn).convert("RGB").quantize(128).save(small, "PNG", optimize=True)
    return small.getvalue()


def of_load(cell: Cell, rows: Sequence[Row], panels: Sequence[Panel] = ()) -> Iterator[Picture]:
    """The pictures of one load."""

    def picture(
        kind: str, title: str, about: str, draw: Callable[..., Figure], of: Sequence[Row] | Sequence[Panel]
    ) -> Picture:
        return Picture(f"{kind}-{_slug(cell)}", title, about, partial(draw, of, title=_headed(title, cell)))

    if any(run.ttft for row in rows for run in row.runs):
        yield picture(
            "ttft",
            "Time to first token",
            "The share of queries that wait longer than so many seconds for their first token, after the last piece.",
            distributions.ttft,
            rows,
        )
    if any(run.completion for row in rows for run in row.runs):
        yield picture(
            "completion",
            "From arrival to the answer's end",
            "The share of queries that are answered within so many seconds of their arrival.",
            distributions.completion,
            rows,
        )
    if any(max(distributions.invalidated_tokens(run), default=0) > 0 for row in rows for run in row.runs):
        yield picture(
            "invalidated",
            "Tokens received and then replaced",
            "The share of queries of which more than so many tokens were received and then replaced.",
            distributions.invalidated,
            rows,
        )
    if panels:
        yield picture(
            "timeline",
            f"Query {panels[0].query}: tokens over time",
            "Of one query: when its pieces came, the tokens retrieved and prefilled, and the first token.",
            draw_panels,
            panels,
        )


def of_sweeps(rows: Iterable[Row]) -> Iterator[Picture]:
    """TTFT against the rate, wherever a load was run at several rates."""
    for cell, group in groupby(sorted(rows, key=_without_rate), key=_without_rate):
        of_it = list(group)
        if len({row.cell.qps for row in of_it}) < 2:
            continue
        percentiles = ", ".join(map(percentile_name, sweep.SHOWN))
        title = "Time to first token against the rate of arrivals"
        yield Picture(
            f"ttft-against-qps-{_slug(cell)}",
            f"{title}: {_load(cell)}",
            f"{percentiles} of the time to first token, in seconds, at each rate of arrivals.",
            partial(sweep.draw, of_it, title=_headed(title, cell)),
        )


def of_costs(profile: CostProfile) -> Picture:
    """The curves of a cost profile."""
    subject = profile.subject
    return Picture(
        "costs-" + _joined(subject.hardware, subject.model, str(profile.step_tokens)),
        costs.title(profile),
        "Seconds to prefill so many tokens behind several contexts, and to copy their KV blocks out and back.",
        partial(costs.draw, profile),
    )


def _without_rate(row: Row) -> Cell:
    return replace(row.cell, qps=0.0)


def _load(cell: Cell) -> str:
    return str(cell).replace("0 queries/s, ", "") if cell.qps == 0 else str(cell)


def _headed(title: str, cell: Cell) -> str:
    """What is shown and by which clock; the load; what it ran on."""
    clock = f" · {SIMULATED}" if cell.clock is Clock.VIRTUAL else ""
    place = shorten(" on ".join(filter(None, (cell.model, cell.machine))), 90)
    return "\n".join(filter(None, (title + clock, _load(cell), place)))


def _slug(cell: Cell) -> str:
    rate = f"qps{cell.qps:g}" if cell.qps else ""
    scale = f"scale{cell.time_scale:g}" if cell.time_scale != 1 else ""
    return _joined(cell.clock.value, cell.workload, rate, f"x{cell.delay:g}", scale)


def _joined(*parts: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(filter(None, parts)).lower()).strip("-")[:120]
