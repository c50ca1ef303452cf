"""Pictures of distributions: of TTFT, of the time to completion, of tokens invalidated. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from stream2llm.workloads.comparison import Row
from stream2llm.workloads.measured import SHARES, Measured, percentile_name
from stream2llm.workloads.report.style import Lines, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Sequence[float]
Points = tuple[list[float], list[float]]

SIZE = (7.0, 4.3)  # inches
COUNTER = "invalidated_tokens"  # in `Counters.by_query`


def longer(values: Values) -> Points:
    """For each value the share of values that are greater, from all of them on; the last, whose share is 0, ends it."""
    ordered = sorted(values)
    count = len(ordered)
    return [ordered[0], *ordered], [1.0, *((count - rank) / count for rank in range(1, count + 1))]


def within(values: Values) -> Points:
    """For each value the share of values up to it."""
    xs, ys = longer(values)
    return xs, [1 - y for y in ys]


def ttft(rows: Sequence[Row], theme: Theme, *, title: str) -> Figure:
    """The complementary distribution of TTFT, on logarithmic axes; all seeds together."""
    figure, axes = _figure(title)
    greatest = _draw(axes, rows, theme, lambda run: run.ttft, longer)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("time to first token after the last piece [s]")
    _tail(axes, greatest, theme)
    _legend(figure, axes)
    return figure


def completion(rows: Sequence[Row], theme: Theme, *, title: str) -> Figure:
    """The distribution of the time from arrival to the answer's end; all seeds together."""
    from matplotlib.ticker import PercentFormatter

    figure, axes = _figure(title)
    _draw(axes, rows, theme, lambda run: run.completion, within)
    axes.set_xlabel("time from arrival to the answer's end [s]")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.01)
    axes.set_ylabel("queries answered within that time")
    axes.yaxis.set_major_formatter(PercentFormatter(1, 0, " %"))
    _legend(figure, axes)
    return figure


def invalidated_tokens(run: Measured) -> tuple[float, ...]:
    """Of each query that has a count; nothing if the log has none."""
    return tuple(run.by_query.get(COUNTER, {}).values())


def invalidated(rows: Sequence[Row], theme: Theme, *, title: str) -> Figure:
    """The complementary distribution of the tokens that were replaced after they had been received.

    Queries without a count had none invalidated: they lower the curves.
    """
    figure, axes = _figure(title)

    def of_every_query(run: Measured) -> Values:
        counted = invalidated_tokens(run)
        return (*counted, *(0.0 for _ in range(len(run.queries) - len(counted)))) if counted else ()

    def above_zero(values: Values) -> Points:
        xs, ys = longer(values)
        points = [(x, y) for x, y in zip(xs, ys, strict=True) if x > 0]
        share = sum(value > 0 for value in values) / len(values)
        return [min(x for x, _ in points), *(x for x, _ in points)], [share, *(y for _, y in points)]

    greatest = _draw(axes, rows, theme, of_every_query, above_zero)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("tokens of a query received and then replaced")
    _tail(axes, greatest, theme, "queries with more than that")
    _legend(figure, axes)
    return figure


def _figure(title: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE)
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _draw(
    axes: Axes,
    rows: Iterable[Row],
    theme: Theme,
    values: Callable[[Measured], Values],
    shape: Callable[[Values], Points],
) -> int:
    """A step line for each variant that has values; the greatest number of values of one."""
    lines = Lines(theme)
    greatest = 1
    for row in rows:
        pooled = [value for run in row.runs for value in values(run)]
        if pooled and max(pooled) > 0:
            axes.step(*shape(pooled), where="post", **lines.of(row.variant))
            greatest = max(greatest, len(pooled))
    return greatest


def _tail(axes: Axes, values: int, theme: Theme, label: str = "queries that wait longer than that") -> None:
    """A logarithmic axis of shares down to one query, with the percentiles named at its right."""
    axes.set_yscale("log")
    axes.set_ylim(min(1 / values, 0.05) * 0.8, 1.15)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value * 100:g} %")
    axes.set_ylabel(label)
    for share in SHARES:
        if (1 - share) * values >= 1:
            axes.axhline(1 - share, color=theme.faint, linewidth=0.9, zorder=0.5)
            axes.annotate(
                percentile_name(share),
                (1, 1 - share),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if len(labels) == 1 else 2 if len(labels) in (2, 4) else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.8)
