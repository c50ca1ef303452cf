"""A picture of a trace's characteristics: the cumulative distribution of each, with the published percentiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from stream2llm.workloads.characteristics import QUANTITIES, Characteristics
from stream2llm.workloads.marginals import WORKLOADS, Marginal, published

WIDE = 20.0  # P95 over P5 from which on an axis is logarithmic


def plot_distributions(found: Characteristics, path: Path) -> None:
    """Write a PNG, whatever the name of `path`. Raises `OSError`."""
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle(f"{found.workload}: {len(found.values['chunks']):,} queries")
    known = published(found.workload) if found.workload in WORKLOADS else None
    for axes, (quantity, title) in zip(figure.subplots(2, 2).flat, QUANTITIES.items(), strict=True):
        _distribution(axes, found, quantity, title, getattr(known, quantity) if known else None)
    figure.savefig(path, format="png", dpi=120)


def _distribution(axes: Axes, found: Characteristics, quantity: str, title: str, known: Marginal | None) -> None:
    values = np.sort(np.asarray(found.values[quantity]))
    axes.set(xlabel=title, ylabel="share of gaps" if quantity == "gap_s" else "share of queries", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    if len(values):
        axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", label="this trace")
        summary = found.summary(quantity)
        if summary.percentiles[5] > 0 and summary.percentiles[95] > WIDE * summary.percentiles[5]:
            axes.set_xscale("log")
    if known is not None:
        axes.plot(
            list(known.percentiles.values()),
            [percent / 100 for percent in known.percentiles],
            "o",
            label="the paper's",
        )
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right")
