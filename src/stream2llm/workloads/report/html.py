"""The report as one HTML file that needs nothing else: pictures are in it, for a light and for a dark page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from stream2llm.workloads.report.pictures import Picture
from stream2llm.workloads.report.summary import SIMULATED, Load, Summary
from stream2llm.workloads.report.tables import Table, tables

PAPER = "https://arxiv.org/abs/2604.16395"
TITLE = "Streaming retrieval context into vLLM: what was measured"


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture as it stands in the page: PNGs in base64."""

    title: str
    about: str
    light: str
    dark: str

    @classmethod
    def of(cls, picture: Picture, light: bytes, dark: bytes) -> Shown:
        return cls(picture.title, picture.about, b64encode(light).decode(), b64encode(dark).decode())


@dataclass(frozen=True, slots=True)
class Section:
    """One load with its tables and pictures."""

    load: Load
    pictures: Sequence[Shown]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tables(self.load)

    @property
    def place(self) -> str:
        """What ran where."""
        return " on ".join(filter(None, (self.load.model, self.load.machine)))


def page(summary: Summary, overview: Sequence[Shown], sections: Sequence[Section]) -> str:
    """`overview`: pictures that belong to no single load; `sections` in the order of the summary's loads."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("stream2llm.workloads.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=TITLE,
        summary=summary,
        overview=overview,
        sections=sections,
        simulated=SIMULATED,
        paper=PAPER,
        has_paper=any(line.paper for load in summary.loads for line in load.lines),
    )
