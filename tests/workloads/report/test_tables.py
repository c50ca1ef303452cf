"""Figures as text."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from event_logs import counted, measured
from stream2llm.workloads.comparison import Spread, compare
from stream2llm.workloads.events import Event, What
from stream2llm.workloads.measured import Measured, measure
from stream2llm.workloads.report.console import show
from stream2llm.workloads.report.summary import SIMULATED, Load, summarise
from stream2llm.workloads.report.tables import MARK, Entry, Table, number, percent, spread, tables


def load(*runs: Measured) -> Load:
    (found,) = summarise(compare(runs)).loads
    return found


def titled(found: Load, title: str) -> Table:
    return next(table for table in tables(found) if table.title.startswith(title))


def test_every_table_says_that_it_is_simulated() -> None:
    made = tables(load(measured([1.0], "wait"), measured([0.5], counters=counted(recomputed=1, tokens_computed=9))))
    assert len(made) == 5
    assert all(table.title.endswith(f"· {SIMULATED}") for table in made)


def test_the_times_and_how_many_times_sooner() -> None:
    found = load(measured([1.0], "wait"), measured([0.25]))
    assert titled(found, "Time to first token").columns == ("", "P50 [s]", "P95 [s]", "P99 [s]", "P99.9 [s]")
    wait, stream = titled(found, "Times sooner").rows
    assert [entry.text for entry in wait] == ["wait", "1 x", "1 x", "1 x", "1 x"]
    assert [entry.text for entry in stream] == ["stream", "4 x", "4 x", "4 x", "4 x"]


def test_without_a_waiting_run_nothing_is_compared() -> None:
    assert not any("waiting" in table.title for table in tables(load(measured([0.25]))))
    assert "over waiting" not in titled(load(measured([0.25])), "Throughput").columns


def test_several_seeds_show_their_range_and_the_note_how_many() -> None:
    table = titled(load(measured([1.0], seed=0), measured([3.0], seed=1)), "Time to first token")
    assert table.rows[0][1] == Entry("2", "1–3")
    assert table.note == "Medians over 2 runs; below them the least and the greatest."


def test_what_deviates_from_the_paper_is_marked() -> None:
    runs = measured([0.8], "wait", machine="H200"), measured([0.4], machine="H200", policy="fcfs", preemption="cost")
    wait, stream = titled(load(*runs), "Beside the paper").rows
    assert wait[1] == Entry("0.8 s", "paper 0.752 s\n+6 %")
    assert stream[1] == Entry("2 x", f"paper 11 x\n-82 % {MARK}", marked=True)


def test_preemptions_stand_beside_the_papers() -> None:
    run = measured([1.0], policy="lcas", preemption="cost", delay=10.0, counters=counted(recomputed=2000, swapped=3))
    table = titled(load(run), "Preemptions")
    assert table.columns == ("", "recomputed", "swapped")
    assert table.rows[0][1:] == (Entry("2,000", "paper 2,773"), Entry("3", "paper 713"))


def test_failures_have_a_column_when_there_are_any() -> None:
    failed = measure(measured([1.0]).run, [Event(0.0, "q9", What.ERROR, detail="HTTP 500")])
    table = titled(load(measured([1.0], "wait"), failed), "Throughput")
    assert table.columns[:3] == ("", "queries", "failed")
    assert (table.rows[0][2], table.rows[1][2]) == (Entry("0"), Entry("1", marked=True))
    assert "failed" not in titled(load(measured([1.0])), "Throughput").columns


def test_a_terminal_shows_every_load_with_its_tables_and_the_notes() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    show(summarise(compare([measured([1.0], "wait"), measured([0.25], machine="m", model="n")]), ["cut off"]), console)
    text = console.export_text()
    assert "crawler, 4 queries/s, delays x1 · simulated (virtual clock) · n on m" in text
    assert "0.25" in text
    assert "note: cut off" in text
    assert "…" not in text


@given(st.floats(1e-5, 999))
def test_numbers_keep_three_digits_and_no_exponent(value: float) -> None:
    assert "e" not in number(value)
    assert abs(float(number(value)) - value) <= max(value * 0.005, 5e-7) * 1.000001


def test_numbers_and_shares_are_written_for_readers() -> None:
    assert [number(v) for v in (12564.4, 999.6, 0, 0.00001)] == ["12,564", "1,000", "0", "0.00001"]
    assert [percent(v) for v in (0.123, -0.4)] == ["+12 %", "-40 %"]
    assert spread(Spread(1.0, 1.0, 1.0, 3), " x") == Entry("1 x")
    assert spread(None) == Entry("–")
