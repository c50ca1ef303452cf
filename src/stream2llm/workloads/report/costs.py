"""The picture of a cost profile's curves. Needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream2llm.costs import CostProfile, Preemption, SourceKind, Victim, decide
from stream2llm.workloads.report.style import Theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CONTEXTS = (0, 8192, 32768)  # tokens in front of those that are prefilled
_SHADES = (("#0072b2", "#5d9fe0"), ("#d55e00", "#ff7a1a"), ("#007a59", "#1fc79a"))
_LINES = ("solid", (0, (4, 1.5)), (0, (1.5, 1.2)))


def title(profile: CostProfile) -> str:
    """What the curves are of, and whether they were measured."""
    subject = profile.subject
    how = "measured" if profile.source.kind is SourceKind.MEASURED else "estimated"
    return f"Cost of prefill and of copies ({how}): {subject.model} on {subject.hardware}"


def swapped_from(profile: CostProfile) -> int | None:
    """The fewest tokens (a power of 2) from which on swapping is cheaper than recomputing; None if it never is."""
    found = None
    for tokens in reversed(_lengths(profile)):
        decision = decide(Victim(tokens), profile)
        if decision is None or decision.preemption is Preemption.RECOMPUTE:
            break
        found = tokens
    return found


def draw(profile: CostProfile, theme: Theme) -> Figure:
    """Seconds to prefill so many tokens, behind several contexts, and to copy their KV out and back."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.3))
    axes = figure.add_subplot()
    xs = _lengths(profile)
    prefill, copy, mark = (shades[theme.shade] for shades in _SHADES)
    contexts = [context for context in _CONTEXTS if context <= profile.prefill.longest_context]
    for context, dashes in zip(contexts, _LINES, strict=False):
        label = f"prefill behind {context:,} tokens" if context else "prefill"
        ys = [profile.prefill_seconds(x, context) for x in xs]
        axes.plot(xs, ys, color=prefill, linestyle=dashes, label=label)
    copies = [profile.copy_out_seconds(x) + profile.copy_in_seconds(x) for x in xs]
    axes.plot(xs, copies, color=copy, label="copy of their KV out and back")
    if (crossing := swapped_from(profile)) is not None:
        always = crossing == xs[0]
        said = " swapping is cheaper\n than recomputing\n" + (
            " at any length" if always else f" from {crossing:,} tokens on"
        )
        axes.annotate(
            said,
            (crossing, 0.98),
            va="top",
            fontsize=8.5,
            xycoords=("data", "axes fraction"),
            color=theme.ink if always else mark,
        )
        if not always:
            axes.axvline(crossing, color=mark, linewidth=1.2, linestyle=_LINES[2])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("tokens")
    axes.set_ylabel("time [s]")
    axes.set_title(title(profile).replace(": ", "\n", 1))
    figure.legend(loc="outside lower center", ncols=2, handlelength=2.8)
    return figure


def _lengths(profile: CostProfile) -> list[int]:
    longest = int(profile.prefill.base.xs[-1])
    return [2**power for power in range(4, max(5, longest.bit_length()))]
