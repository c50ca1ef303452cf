"""The picture of TTFT against the rate of arrivals. Needs matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stream2llm.workloads.comparison import Row, Variant
from stream2llm.workloads.measured import percentile_name
from stream2llm.workloads.report.beside import on_paper_machine, published_row
from stream2llm.workloads.report.style import Lines, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = (0.5, 0.95, 0.99)


def draw(rows: Sequence[Row], theme: Theme, *, title: str) -> Figure:
    """One panel for each of the percentiles `SHOWN`. Hollow circles: the paper's figures, for runs on its machine."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(9.2, 4.0))
    panels = figure.subplots(1, len(SHOWN), sharey=True, squeeze=False)[0]
    variants: dict[Variant, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.cell.qps):
        variants[row.variant].append(row)
    papers = [_panel(axes, share, variants, theme) for axes, share in zip(panels, SHOWN, strict=True)]
    panels[0].set_ylabel("time to first token [s]")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    if any(papers):
        handles.append(Line2D([], [], marker="o", mfc="none", color=theme.ink, linestyle="none", label="the paper's"))
        labels.append("the paper's")
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), handlelength=2.8)
    return figure


def _panel(axes: Axes, share: float, variants: dict[Variant, list[Row]], theme: Theme) -> bool:
    """Whether any of the paper's figures is in it."""
    lines = Lines(theme)
    rates = sorted({row.cell.qps for of_it in variants.values() for row in of_it})
    has_paper = False
    for variant, of_it in variants.items():
        points = [(row.cell.qps, spread) for row in of_it if (spread := row.seconds(share))]
        if not points:
            continue
        style = {**lines.of(variant), "marker": "o", "markersize": 4, "markevery": None}
        xs, ys = [rate for rate, _ in points], [spread.median for _, spread in points]
        axes.plot(xs, ys, **style)
        if any(spread.seeds > 1 for _, spread in points):
            axes.vlines(xs, [s.low for _, s in points], [s.high for _, s in points], color=style["color"], linewidth=1)
        paper = [
            (row.cell.qps, found.seconds[share])
            for row in of_it
            if on_paper_machine(row) and (found := published_row(row)) and share in found.seconds
        ]
        if paper:
            has_paper = True
            axes.plot(*zip(*paper, strict=True), "o", mfc="none", markersize=8, color=style["color"])
    axes.set_title(percentile_name(share))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates], minor=False)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("queries per second")
    return has_paper
