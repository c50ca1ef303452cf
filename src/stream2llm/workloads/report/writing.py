"""From logs to a report in a folder: `report.html`, `report.json`, and a PNG of each picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec

from stream2llm.costs import CostProfile
from stream2llm.workloads.comparison import Row, compare
from stream2llm.workloads.measured import Measured, read
from stream2llm.workloads.report import pictures
from stream2llm.workloads.report.html import Section, Shown, page
from stream2llm.workloads.report.pictures import Picture, png
from stream2llm.workloads.report.style import DARK, LIGHT
from stream2llm.workloads.report.summary import Summary, summarise
from stream2llm.workloads.report.timeline import panels

Progress = Callable[[str, int, int], None]  # what, done, in all


class NothingMeasured(ValueError):
    """No log has a query with a first token."""


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to report, before anything is drawn."""

    rows: tuple[Row, ...]
    summary: Summary


def report_on(paths: Sequence[Path], progress: Progress = lambda *_: None) -> Report:
    """Read the logs. One without any first token is left out, with a note.

    Raises `FormatError` for a file that is no event log, `NothingMeasured`, and `OSError`.
    """
    runs = []
    for number, path in enumerate(paths):
        progress("logs", number, len(paths))
        runs.append(read(path))
    progress("logs", len(paths), len(paths))
    return report_of(runs)


def report_of(runs: Sequence[Measured]) -> Report:
    """Of what was measured. A run without any first token is left out, with a note. Raises `NothingMeasured`."""
    told = [measured for measured in runs if measured.ttft]
    if not told:
        names = ", ".join(str(measured.path) for measured in runs)
        raise NothingMeasured(f"there is nothing to report: no query has a first token in {names}")
    rows = compare(told)
    return Report(rows, summarise(rows, [note for measured in runs for note in notes(measured)]))


def notes(measured: Measured) -> list[str]:
    """What a reader must know before believing a run's figures."""
    name, queries, run = measured.path, len(measured.queries), measured.run
    found = []
    if measured.cut_off:
        found.append(f"The log breaks off and was read up to there: {measured.cut_off}")
    if not measured.ttft:
        found.append(f"{name}: no query has a first token; left out")
    if measured.failed:
        first = next(query for query in measured.queries if query.error)
        found.append(f"{name}: {measured.failed} of {queries} queries failed, e.g. {first.query}: {first.error}")
    if queries < run.queries:
        found.append(f"{name}: ended early; {queries} of {run.queries} queries had arrived")
    if unfinished := queries - measured.failed - len(measured.completion):
        found.append(f"{name}: {unfinished} of {queries} queries have no end")
    return found


def write_report(
    report: Report, directory: Path, profiles: Iterable[CostProfile] = (), progress: Progress = lambda *_: None
) -> Path:
    """Draw and write everything into `directory`, which is made if need be; gives the HTML file. Raises `OSError`."""
    directory.mkdir(parents=True, exist_ok=True)
    groups = [tuple(of_it) for _, of_it in groupby(report.rows, key=lambda row: row.cell)]
    overview = [*pictures.of_sweeps(report.rows), *map(pictures.of_costs, profiles)]
    of_loads = [list(pictures.of_load(rows[0].cell, rows, panels(rows))) for rows in groups]
    total, done, names = len(overview) + sum(map(len, of_loads)), 0, set[str]()

    def shown(picture: Picture) -> Shown:
        nonlocal done
        progress("pictures", done, total)
        done += 1
        light = png(picture, LIGHT)
        name = picture.name if picture.name not in names else f"{picture.name}-{done}"
        names.add(name)
        (directory / f"{name}.png").write_bytes(light)
        return Shown.of(picture, light, png(picture, DARK))

    drawn = [shown(picture) for picture in overview]
    sections = [
        Section(load, [shown(picture) for picture in of_load])
        for load, of_load in zip(report.summary.loads, of_loads, strict=True)
    ]
    progress("pictures", total, total)
    (directory / "report.json").write_bytes(as_json(report.summary) + b"\n")
    target = directory / "report.html"
    target.write_text(page(report.summary, drawn, sections), encoding="utf-8")
    return target


def as_json(summary: Summary) -> bytes:
    """One JSON object on one line."""
    return msgspec.json.encode(summary)
