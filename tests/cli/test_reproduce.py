"""`stream2llm reproduce`, at a scale that takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stream2llm.cli import app
from stream2llm.workloads import evaluation
from stream2llm.workloads.claims import findings
from stream2llm.workloads.evaluation import Point, Scale, planned
from stream2llm.workloads.measured import read

POINTS = (Point("crawler", 4.0), Point("anns", 2.0, 30.0, ablations=True))


def reproduce(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", "paper", *map(str, arguments)])


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Scale:
    """Two loads of few queries."""
    small = Scale({"crawler": 6, "anns": 4})
    monkeypatch.setattr(evaluation, "QUICK", small)
    monkeypatch.setattr(evaluation, "POINTS", POINTS)
    return small


def test_every_planned_run_has_its_log_and_what_they_show_is_written_and_printed(tmp_path: Path, scale: Scale) -> None:
    out = tmp_path / "new" / "out"
    done = reproduce("--quick", "--processes", 1, "--out", out)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert {path.name for path in (out / "logs").iterdir()} == {f"{run.name}.jsonl.gz" for run in planned(scale)}

    runs = [read(path) for path in sorted((out / "logs").iterdir())]
    for run in runs:
        assert len(run.ttft) == run.run.queries == scale.queries[run.run.workload]  # type: ignore[index]
    written = json.loads((out / "findings.json").read_text())
    found = findings(runs)
    expected = {(f.claim, f.where): (round(f.figure, 4), f.wanted, f.holds) for f in found}
    assert {(f["claim"], f["where"]): (f["figure"], f["wanted"], f["holds"]) for f in written} == expected
    assert len(written) == len(expected) > 20

    assert done.stdout.startswith("simulated (virtual clock)\n")
    for finding in found:
        assert f"\n{finding.claim}: " in done.stdout
        mark = "NO" if finding.holds is False else "  "
        assert f"  {mark} {finding.figure:6.3f}  {finding.where}  ({finding.wanted})\n" in done.stdout
    assert str(out) in done.stdout

    assert "simulated (virtual clock)" in (out / "report.html").read_text()
    pictures = {path.name.partition("-")[0] for path in out.glob("*.png")}
    assert pictures == {"completion", "costs", "invalidated", "timeline", "ttft"}


def test_as_json_and_with_several_seeds(tmp_path: Path, scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "POINTS", POINTS[:1])
    done = reproduce("--quick", "--processes", 1, "--seeds", 2, "--json", "--out", tmp_path)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    printed = json.loads(done.stdout)
    assert printed["findings"] == json.loads((tmp_path / "findings.json").read_text())
    assert printed["out"] == str(tmp_path)
    seeds = [read(path).run.seed for path in (tmp_path / "logs").iterdir()]
    assert sorted(seeds) == [0] * 6 + [1] * 6  # waiting, and five policies


@pytest.mark.parametrize("options", [("--seeds", 0), ("--processes", 0)])
def test_an_option_out_of_its_range_is_exit_status_2(options: tuple[object, ...]) -> None:
    assert reproduce(*options).exit_code == 2


def test_another_machine_is_refused_by_name(tmp_path: Path) -> None:
    done = reproduce("--machine", "4xb200", "--out", tmp_path / "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "stream2llm reproduce: --machine 4xb200: choose 2xh200 or 2xh100\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = reproduce("--out", tmp_path / "file")
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "file") in done.stderr
