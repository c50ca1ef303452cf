"""One query's timeline under several variants: pieces, tokens retrieved and prefilled, the first token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from stream2llm.workloads.comparison import Row, Variant
from stream2llm.workloads.events import Arm, Event, What, read_events
from stream2llm.workloads.lines import FormatError
from stream2llm.workloads.measured import Measured
from stream2llm.workloads.report.style import Theme, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 4
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One query under one variant. Times in seconds since its arrival.

    `retrieved`, `prefilled`: (time, tokens so far), as the log has them; the second is empty if the log does not say.
    `pieces`: when each came.
    """

    query: str
    variant: Variant
    retrieved: Points
    prefilled: Points
    pieces: tuple[float, ...]
    last: float
    first: float


def panels(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Those of one load: its query whose retrieval is of median length, under waiting and what it is compared with.

    Of more than `MOST_PANELS` variants, the ones with the lowest P95 beside waiting. Reads the logs once more.
    Empty if no query was answered in all of them.
    """
    chosen = _chosen(rows)
    query = typical_query([run for _, run in chosen])
    if query is None:
        return ()
    return tuple(panel(variant, _events(run.path, query)) for variant, run in chosen if run.path)


def typical_query(runs: Sequence[Measured]) -> str | None:
    """The query with the median time from arrival to last piece, of those that have a TTFT in all runs.

    Of those with several operations, if there are any.
    """
    if not runs:
        return None
    common = set.intersection(*({query.query for query in run.queries if query.ttft is not None} for run in runs))
    answered = [times for times in runs[-1].queries if times.query in common]
    streamed = [times for times in answered if times.operations > 1] or answered
    retrieval = {
        times.query: times.last - times.arrival
        for times in streamed
        if times.last is not None and times.arrival is not None
    }
    if not retrieval:
        return None
    middle = median_low(retrieval.values())
    return min(query for query, seconds in retrieval.items() if seconds == middle)


def panel(variant: Variant, events: Sequence[Event]) -> Panel:
    """The panel of one query's events, which include its arrival, its last piece and its first token."""
    at = {event.what: event.t for event in reversed(events)}
    arrival, last, first = at[What.ARRIVED], at[What.LAST], at[What.FIRST]
    sent = [event for event in events if event.what in (What.SENT, What.LAST)]
    retrieved = tuple((event.t - arrival, float(event.tokens)) for event in sent if event.tokens is not None)
    known = [e for e in events if e.what is What.ACKED and e.computed is not None and e.t <= first]
    prefilled = [(event.t - arrival, float(event.computed or 0)) for event in known]
    if prefilled and retrieved:
        prefilled.append((first - arrival, retrieved[-1][1]))
    pieces = tuple(sorted({event.t - arrival for event in sent}))
    return Panel(events[0].query, variant, retrieved, tuple(prefilled), pieces, last - arrival, first - arrival)


def draw_panels(panels: Sequence[Panel], theme: Theme, *, title: str) -> Figure:
    """One below the other, over the same seconds."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure = Figure(figsize=(7.0, 1.3 + 1.45 * len(panels)))
    all_axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    pieces = max((panel.pieces for panel in panels), key=len)
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel, pieces, theme)
    all_axes[-1].set_xlabel("seconds since the query's arrival")
    figure.supylabel("tokens", fontsize=9.5)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    handles = [
        Line2D([], [], color=theme.ink, marker="|", linestyle="none", markersize=9, label="a piece arrives"),
        Line2D([], [], color=theme.ink, linewidth=1.4, label="retrieved"),
        Patch(facecolor=theme.ink, alpha=0.15, label="waiting for the first token"),
    ]
    if any(panel.prefilled for panel in panels):
        handles.insert(2, Patch(facecolor=theme.ink, alpha=0.45, label="known to be prefilled"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5, handlelength=1.8)
    return figure


def _draw_panel(axes: Axes, panel: Panel, pieces: Sequence[float], theme: Theme) -> None:
    shade = colour(panel.variant, theme)
    end = panel.first
    axes.axvspan(panel.last, panel.first, color=shade, alpha=0.18, linewidth=0)
    for points, fill in ((panel.prefilled, True), (panel.retrieved, False)):
        xs = [0.0, *(x for x, _ in points), end]
        ys = [0.0, *(y for _, y in points), points[-1][1] if points else 0.0]
        if fill:
            axes.fill_between(xs, ys, step="post", color=shade, alpha=0.45, linewidth=0)
        else:
            axes.step(xs, ys, where="post", color=shade, linewidth=1.4)
    axes.axvline(panel.first, color=shade, linewidth=2)
    axes.plot(pieces, [0] * len(pieces), "|", color=theme.ink, markersize=9, clip_on=False, zorder=3)
    axes.set_title(f"{panel.variant}: first token {panel.first - panel.last:.3g} s after the last piece", fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(False)


def _chosen(rows: Sequence[Row]) -> list[tuple[Variant, Measured]]:
    """Runs of one seed, so that their queries are the same, in the order of `rows`."""
    seed = min((run.run.seed for row in rows for run in row.runs), default=0)
    runs = [(row.variant, run) for row in rows for run in row.runs if run.run.seed == seed and run.path and run.ttft]
    runs = list({variant: (variant, run) for variant, run in reversed(runs)}.values())[::-1]
    best = sorted(runs, key=lambda of: (of[0].arm is not Arm.WAIT, of[1].quantile(0.95)))[:MOST_PANELS]
    return [of for of in runs if of in best]


def _events(path: Path, query: str) -> list[Event]:
    found: list[Event] = []
    try:
        for record in read_events(path)[1]:
            if isinstance(record, Event) and record.query == query:
                found.append(record)
    except FormatError:  # a log that is cut off: what comes before is whole, and `measured.read` has said so
        pass
    return sorted(found, key=lambda event: event.t)
