"""The figures as tables of text, for the console and for HTML alike. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stream2llm.workloads.comparison import Spread
from stream2llm.workloads.measured import SHARES, percentile_name
from stream2llm.workloads.published import Preemptions
from stream2llm.workloads.report.beside import FAR
from stream2llm.workloads.report.summary import Line, Load, Percentiles

MARK = "(!)"
_PERCENTILES = tuple(map(percentile_name, SHARES))


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell. `detail`: smaller, in lines below; `marked`: to be looked at."""

    text: str = "–"
    detail: str = ""
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """`columns[0]` heads the variants' names; `note` stands below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    note: str = ""


def tables(load: Load) -> tuple[Table, ...]:
    """Those that have anything to tell; columns without a single figure are left out."""
    made = (_ttft(load), _sooner(load), _paper(load), _queries(load), _work(load), _preemptions(load))
    return tuple(table for table in made if table is not None)


def number(value: float) -> str:
    """Rounded to three digits, or to a whole number: 0.0312, 3.89, 12,564."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def percent(share: float) -> str:
    """With its sign: +12 %."""
    return f"{share * 100:+.0f} %"


def spread(figure: Spread | None, unit: str = "") -> Entry:
    """The median; below it, the range over several seeds."""
    if figure is None:
        return Entry()
    low, high = number(figure.low), number(figure.high)
    return Entry(number(figure.median) + unit, f"{low}–{high}" if low != high else "")


def _ttft(load: Load) -> Table | None:
    columns = {f"{name} [s]": _at(name, lambda line: line.ttft_seconds) for name in _PERCENTILES}
    return _table(load, "Time to first token, from the last piece on", columns, _seeds_note(load))


def _sooner(load: Load) -> Table | None:
    columns = {name: _at(name, lambda line: line.times_sooner, " x") for name in _PERCENTILES}
    if not any(line.times_sooner and line.name != "wait" for line in load.lines):
        return None
    return _table(load, "Times sooner than waiting", columns, "Above 1: the first token comes sooner than by waiting.")


def _paper(load: Load) -> Table | None:
    def column(name: str) -> Callable[[Line], Entry]:
        def entry(line: Line) -> Entry:
            found = line.paper.get(name)
            if found is None:
                return Entry()
            unit = " s" if found.unit == "s" else " x"
            mark = f" {MARK}" if found.far else ""
            detail = f"paper {number(found.paper)}{unit}\n{percent(found.deviation)}{mark}"
            return Entry(number(found.ours) + unit, detail, found.far)

        return entry

    note = (
        "Waiting in seconds, the rest in times sooner than waiting. The paper's runs: 2 x H200, Llama-3.1-8B. "
        f"{MARK}: off by more than {FAR * 100:.0f} %."
    )
    return _table(load, "Beside the paper", {name: column(name) for name in _PERCENTILES}, note)


def _queries(load: Load) -> Table | None:
    def count(of: Callable[[Line], int]) -> Callable[[Line], Entry]:
        return lambda line: Entry(f"{of(line):,}", marked=of(line) > 0)

    columns: dict[str, Callable[[Line], Entry]] = {"queries": lambda line: Entry(f"{line.queries:,}")}
    if any(line.failed for line in load.lines):
        columns["failed"] = count(lambda line: line.failed)
    if any(line.unfinished for line in load.lines):
        columns["unfinished"] = count(lambda line: line.unfinished)
    columns |= {
        "queries/s": lambda line: spread(line.throughput),
        "over waiting": lambda line: spread(line.throughput_ratio),
        "total time [s]": lambda line: spread(line.total_seconds),
        "time over waiting": lambda line: spread(line.total_ratio),
    }
    note = "Queries are those of all seeds together. Total time: from the first arrival to the last end."
    return _table(load, "Throughput", columns, note)


def _work(load: Load) -> Table | None:
    return _table(
        load,
        "Work",
        {
            "work ratio": lambda line: spread(line.work_ratio),
            "net of invalidated": lambda line: spread(line.net_work_ratio),
            "tokens computed": lambda line: spread(line.counters.get("tokens_computed")),
            "tokens needed": lambda line: spread(line.tokens_needed),
            "tokens invalidated": lambda line: spread(line.counters.get("tokens_invalidated")),
        },
        "Work ratio: tokens computed over needed, which are final prompts and answers, once. Invalidated: received and "
        "then replaced; net of them, they count as needed.",
        needs=("work ratio", "tokens computed", "tokens invalidated"),
    )


def _preemptions(load: Load) -> Table | None:
    def kind(name: str, of_paper: Callable[[Preemptions], int]) -> Callable[[Line], Entry]:
        def entry(line: Line) -> Entry:
            figure, paper = spread(line.counters.get(name)), line.paper_preemptions
            told = [figure.detail, f"paper {of_paper(paper):,}" if paper and figure.text != Entry().text else ""]
            return Entry(figure.text, "\n".join(filter(None, told)))

        return entry

    def counter(name: str) -> Callable[[Line], Entry]:
        return lambda line: spread(line.counters.get(name))

    return _table(
        load,
        "Preemptions",
        {
            "recomputed": kind("recomputed", lambda paper: paper.recompute),
            "swapped": kind("swapped", lambda paper: paper.swap),
            "of running streams": counter("preempted"),
            "of idle and waiting": counter("pins_evicted"),
            "of complete requests": counter("preempted_complete"),
        },
        "How victims' blocks were given up (one victim may count as both), and whose they were.",
    )


def _at(name: str, of: Callable[[Line], Percentiles], unit: str = "") -> Callable[[Line], Entry]:
    return lambda line: spread(of(line).get(name), unit)


def _seeds_note(load: Load) -> str:
    seeds = sorted({len(line.seeds) for line in load.lines})
    if seeds == [1]:
        return ""
    return f"Medians over {' or '.join(map(str, seeds))} runs; below them the least and the greatest."


def _table(
    load: Load,
    title: str,
    columns: dict[str, Callable[[Line], Entry]],
    note: str = "",
    needs: Sequence[str] = (),
) -> Table | None:
    """`needs`: columns of which one must have a figure; by default, any."""
    made = {name: [entry(line) for line in load.lines] for name, entry in columns.items()}
    kept = {name: entries for name, entries in made.items() if any(entry != Entry() for entry in entries)}
    if not kept.keys() & (set(needs) or set(columns)):
        return None
    names = [Entry(line.name) for line in load.lines]
    return Table(f"{title} · {load.clock}", ("", *kept), tuple(zip(names, *kept.values(), strict=True)), note)
