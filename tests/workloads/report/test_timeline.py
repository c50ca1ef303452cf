"""One query's timeline, read from the logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from event_logs import events, measured, run, write
from stream2llm.workloads.comparison import Row, Variant, compare
from stream2llm.workloads.events import Arm, Event, What
from stream2llm.workloads.measured import measure, read
from stream2llm.workloads.report.style import LIGHT
from stream2llm.workloads.report.timeline import MOST_PANELS, draw_panels, panel, panels, typical_query


def logged(folder: Path, name: str, ttft: list[float], arm: str = "stream", seed: int = 0, policy: str = "") -> Path:
    return write(folder / f"{name}.jsonl", run(arm, seed=seed, policy=policy), list(events(ttft)))


def rows(*paths: Path) -> tuple[Row, ...]:
    return compare(map(read, paths))


def test_a_panel_has_what_the_log_says_in_seconds_since_the_arrival() -> None:
    second = [event for event in events([9.0, 0.5]) if event.query == "q1"]
    found = panel(Variant(Arm.STREAM), second)
    assert found.query == "q1"
    assert found.retrieved == ((1.0, 50.0), (2.0, 100.0))
    assert found.prefilled == ((pytest.approx(1.1), 25.0), (2.5, 100.0))
    assert found.pieces == (1.0, 2.0)
    assert (found.last, found.first) == (2.0, 2.5)


def test_without_token_counts_there_are_pieces_and_times_only() -> None:
    bare = [Event(event.t, event.query, event.what) for event in events([0.5])]
    found = panel(Variant(Arm.STREAM), bare)
    assert (found.retrieved, found.prefilled, found.pieces) == ((), (), (1.0, 2.0))
    draw_panels([found], LIGHT, title="Query")


def test_the_query_of_median_retrieval_that_all_runs_answered_is_shown() -> None:
    retrieval = [event for n, s in enumerate((5.0, 1.0, 3.0)) for event in _moved(n, s)]
    found = measure(run(), retrieval)
    assert typical_query([found]) == "q2"
    assert typical_query([measured([1.0]), found]) == "q0"
    at_once = [e for e in retrieval if e.query != "q2" or e.what is not What.SENT]
    assert typical_query([measure(run(), at_once)]) == "q1"
    assert typical_query([]) is None


def _moved(number: int, retrieval: float) -> list[Event]:
    return [
        Event(event.t, f"q{number}", event.what, tokens=event.tokens) for event in events([1.0], retrieval=retrieval)
    ]


def test_the_panels_are_of_one_seed_and_in_the_tables_order(tmp_path: Path) -> None:
    found = panels(
        rows(
            logged(tmp_path, "b", [0.5], seed=0),
            logged(tmp_path, "c", [0.25], seed=1),
            logged(tmp_path, "a", [1.0], "wait", seed=0),
        )
    )
    assert [(str(panel.variant), panel.first - panel.last) for panel in found] == [("wait", 1.0), ("stream", 0.5)]
    figure = draw_panels(found, LIGHT, title="Query")
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == [
        "wait: first token 1 s after the last piece",
        "stream: first token 0.5 s after the last piece",
    ]


def test_of_many_variants_waiting_and_the_best_are_shown(tmp_path: Path) -> None:
    logs = [logged(tmp_path, name, [ttft], policy=name) for name, ttft in zip("abcde", range(5, 0, -1), strict=True)]
    found = panels(rows(logged(tmp_path, "wait", [9.0], "wait"), *logs))
    assert [str(panel.variant) for panel in found] == ["wait", "stream c", "stream d", "stream e"]
    assert len(found) == MOST_PANELS


def test_a_log_that_is_cut_off_still_has_a_timeline(tmp_path: Path) -> None:
    path = logged(tmp_path, "a", [0.5] * 4)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(panels(rows(path))) == 1


def test_runs_that_were_not_read_from_a_log_have_none() -> None:
    assert panels(compare([measured([1.0])])) == ()
