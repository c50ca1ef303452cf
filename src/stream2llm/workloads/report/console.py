"""The report's tables in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from stream2llm.workloads.report.summary import Summary
from stream2llm.workloads.report.tables import Entry, Table, tables


def show(summary: Summary, console: Console) -> None:
    """Every load with its tables, then the notes."""
    for load in summary.loads:
        place = " on ".join(filter(None, (load.model, load.machine)))
        console.print()
        console.print(Text(" · ".join(filter(None, (load.title, load.clock, place))), style="bold"))
        for table in tables(load):
            console.print()
            console.print(Text(table.title))
            console.print(_rendered(table))
            if table.note:
                console.print(Text(table.note, style="dim"))
    for note in summary.notes:
        console.print(Text(f"note: {note}"))


def _rendered(table: Table) -> RichTable:
    made = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(table.columns):
        made.add_column(Text(column), justify="right" if number else "left", no_wrap=number == 0)
    for row in table.rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(entry: Entry) -> Text:
    text = Text(entry.text, style="bold" if entry.marked else "")
    return text.append(f"\n{entry.detail}", style="dim") if entry.detail else text
