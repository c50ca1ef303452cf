"""The report in its folder: one HTML file that needs nothing else, JSON, PNGs."""

from __future__ import annotations

import base64
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from event_logs import counted, events, run, write
from stream2llm.costs import paper_profile
from stream2llm.workloads.events import Clock, Event, What
from stream2llm.workloads.report.html import PAPER
from stream2llm.workloads.report.summary import SIMULATED
from stream2llm.workloads.report.writing import NothingMeasured, report_on, write_report

HOSTILE = "<script>alert('model')</script> & \"more\""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on waiting and a stream at two rates, simulated on the paper's machine, and on a real run."""
    logs = tmp_path_factory.mktemp("logs")
    replaced = counted(by_query={"invalidated_tokens": {"q0": 30}}, tokens_computed=500, recomputed=2)
    paths = []
    for qps in (1.0, 4.0):
        for arm, ttft in (("wait", 1.0), ("stream", 0.25)):
            header = run(arm, qps=qps, policy="fcfs", preemption="cost", machine="2 x NVIDIA H200", model=HOSTILE)
            records = [*events([ttft] * 4), *([replaced] if arm == "stream" else [])]
            paths.append(write(logs / f"{arm}-{qps}.jsonl", header, records))
    failing = [*events([0.5] * 3), Event(9.0, "q3", What.ERROR, detail="HTTP <503>")]
    paths.append(write(logs / "real.jsonl", run(clock=Clock.REAL, queries=9), failing))
    out = tmp_path_factory.mktemp("report") / "new" / "folder"
    write_report(report_on(paths), out, [paper_profile("2xh200")])
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tree(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def elements(tree: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return list(tree.iter(name))


def test_the_html_is_well_formed(tree: ElementTree.Element) -> None:
    assert tree.tag == "html"
    identifiers = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(identifiers) == len(set(identifiers))


def test_it_needs_no_other_file_and_no_network(tree: ElementTree.Element, page: str) -> None:
    for element in tree.iter():
        for name in ("src", "srcset", "href", "data", "poster", "action"):
            value = element.get(name, "#")
            assert value.startswith(("data:image/png;base64,", "#")) or value == PAPER, value[:80]
    assert set(re.findall(r"https?://[^\"'<> ]+", page)) == {PAPER}
    assert not elements(tree, "script")
    assert not elements(tree, "link")
    assert "url(" not in page
    assert "@import" not in page


def test_its_links_lead_to_its_sections(tree: ElementTree.Element) -> None:
    identifiers = {element.get("id") for element in tree.iter()}
    targets = [link.get("href", "") for link in elements(tree, "a") if link.get("href", "").startswith("#")]
    assert len(targets) == 5  # the skip link, the overview and three loads
    assert {target[1:] for target in targets} <= identifiers


def test_every_picture_is_there_for_a_light_and_a_dark_page_with_words(tree: ElementTree.Element, folder: Path) -> None:
    shown = elements(tree, "picture")
    assert len(shown) == len(list(folder.glob("*.png"))) == 1 + 1 + 2 * 4 + 3
    for picture in shown:
        source, image = picture
        light = base64.b64decode(image.get("src", "").partition(",")[2])
        dark = base64.b64decode(source.get("srcset", "").partition(",")[2])
        assert Image.open(io.BytesIO(light)).size == Image.open(io.BytesIO(dark)).size
        assert light != dark
        assert len(image.get("alt", "")) > 40


def test_what_scrolls_can_be_reached_by_keyboard(tree: ElementTree.Element) -> None:
    wide = [element for element in elements(tree, "div") if element.get("class") == "wide"]
    assert len(wide) == len(elements(tree, "table")) + len(elements(tree, "picture"))
    assert all(element.get("tabindex") == "0" and element.get("role") == "region" for element in wide)
    assert all(element.get("aria-label") or element.get("aria-labelledby") for element in wide)


def test_it_fits_a_phone_and_follows_the_readers_colours(page: str) -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1" />' in page
    assert "prefers-color-scheme: dark" in page
    assert '<meta name="color-scheme" content="light dark" />' in page


def test_simulated_loads_say_so_in_heading_and_tables_and_real_ones_do_not(tree: ElementTree.Element) -> None:
    def sections() -> Iterator[tuple[str, list[str]]]:
        for section in elements(tree, "section"):
            heads = ["".join(head.itertext()) for name in ("h2", "h3") for head in section.iter(name)]
            yield heads[0], heads

    loads = [(title, heads) for title, heads in sections() if title != "Overview"]
    assert [SIMULATED in title for title, _ in loads] == [False, True, True]
    for title, heads in loads:
        assert len(heads) > 1
        assert all((SIMULATED in head) == (SIMULATED in title) for head in heads)


def test_what_a_log_says_is_text_and_never_markup(tree: ElementTree.Element, page: str) -> None:
    assert "<script" not in page
    assert any(HOSTILE in (element.text or "") for element in tree.iter())


def test_the_notes_tell_what_failed_and_what_ended_early(tree: ElementTree.Element) -> None:
    said = [item.text or "" for item in elements(tree, "li")]
    assert any("1 of 4 queries failed, e.g. q3: HTTP <503>" in text for text in said)
    assert any("ended early; 4 of 9 queries had arrived" in text for text in said)


def test_the_paper_stands_beside(page: str) -> None:
    assert "paper 11 x" in page
    assert "Beside the paper" in page


def test_the_json_has_the_same_loads(folder: Path) -> None:
    found = json.loads((folder / "report.json").read_text())
    assert [load["simulated"] for load in found["loads"]] == [False, True, True]
    assert found["loads"][1]["lines"][1]["times_sooner"]["P50"]["median"] == 4.0


def test_pictures_of_equal_names_do_not_overwrite_each_other(tmp_path: Path) -> None:
    logs = [
        write(tmp_path / f"{machine}.jsonl", run(machine=machine), list(events([1.0]))) for machine in ("one", "other")
    ]
    write_report(report_on(logs), tmp_path / "out")
    assert len(list((tmp_path / "out").glob("ttft-*.png"))) == 2


def test_a_log_without_a_first_token_is_left_out_with_a_note_and_alone_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.jsonl", run("wait"), [Event(0.0, "q0", What.ARRIVED)])
    good = write(tmp_path / "good.jsonl", run(), list(events([1.0] * 4)))
    found = report_on([empty, good]).summary
    assert [line.name for line in found.loads[0].lines] == ["stream"]
    assert any("empty.jsonl: no query has a first token; left out" in note for note in found.notes)
    with pytest.raises(NothingMeasured, match=r"no query has a first token in .*empty\.jsonl"):
        report_on([empty])


def test_progress_is_told_of_logs_and_pictures(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = write(tmp_path / "log.jsonl", run(), list(events([1.0] * 4)))
    report = report_on([path], lambda *now: told.append(now))
    write_report(report, tmp_path / "out", (), lambda *now: told.append(now))
    assert told == [("logs", 0, 1), ("logs", 1, 1), *(("pictures", done, 3) for done in range(4))]
