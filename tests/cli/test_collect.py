"""`stream2llm collect`, as its users start it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream2llm.workloads.trace import Trace, read_trace
from web_site import Site, serving_site

COMMAND = [sys.executable, "-c", "from stream2llm.cli import main; main()", "collect"]
QUESTIONS = ("Which bird sings?", "Which bird swims?", "Which bird hunts?")


def collect(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, options)], capture_output=True, text=True, timeout=120)


@pytest.fixture
def site() -> Iterator[Site]:
    with serving_site() as running:
        running.page("/", "All there is to say of birds.", "/nightingale-sings", "/duck-swims")
        running.page("/nightingale-sings", "The nightingale sings by night.")
        running.page("/duck-swims", "The duck swims on the lake.")
        yield running


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(QUESTIONS))
    return path


def crawl(site: Site, questions: Path, out: Path, *options: object) -> list[str]:
    chosen = ("crawl", "--start", f"{site.url}/", "--questions", questions, "-o", out, "--interval", 0, *options)
    return list(map(str, chosen))


def asked(trace: Trace) -> list[str]:
    return [(query.question.text or "").split("\n")[0].removeprefix("Question: ") for query in trace.queries]


def test_crawls_for_each_question_and_then_only_for_new_ones(site: Site, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl.gz"
    done = collect(*crawl(site, questions, out, "--license", "CC0-1.0"))

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}: 3 of 3 questions\n"
    first = read_trace(out)
    assert asked(first) == list(QUESTIONS)
    assert first.header.license == "CC0-1.0"
    assert [page.removeprefix(site.url) for page in first.queries[1].context] == [
        "/",
        "/duck-swims",
        "/nightingale-sings",
    ]

    site.requests.clear()
    again = collect(*crawl(site, questions, out, "--license", "CC0-1.0", "--question", "Which bird is loud?"))
    assert again.stdout == f"{out}: 4 of 4 questions\n"
    assert read_trace(out).queries[:3] == first.queries
    assert site.paths().count("/") == 1


def test_each_question_may_have_a_start_page_of_its_own(site: Site, tmp_path: Path) -> None:
    file, out = tmp_path / "questions.txt", tmp_path / "trace.jsonl"
    file.write_text(f"{site.url}/duck-swims\tWhich bird swims?\nWhich bird sings?\n")
    done = collect(*crawl(site, file, out, "--depth", 0))

    assert done.returncode == 0, done.stderr
    assert [query.context for query in read_trace(out).queries] == [(f"{site.url}/duck-swims",), (f"{site.url}/",)]


def test_a_question_without_pages_is_told_kept_out_and_tried_again(site: Site, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    lost = f"{site.url}/lost\tWhere is it?\n"
    questions.write_text(lost + "Which bird sings?\n")
    done = collect(*crawl(site, questions, out))

    assert done.returncode == 1
    assert done.stdout == f"{out}: 1 of 2 questions\n"
    assert f"nothing found for 'Where is it?': {site.url}/lost: HTTP 404" in done.stderr
    site.page("/lost", "Here it is.")
    assert collect(*crawl(site, questions, out)).returncode == 0
    assert asked(read_trace(out)) == ["Which bird sings?", "Where is it?"]


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_run_that_is_ended_loses_at_most_the_query_under_way(
    site: Site, questions: Path, tmp_path: Path, how: signal.Signals, status: int, name: str
) -> None:
    out = tmp_path / name
    site.page("/slow", "It takes a while.", delay=5.0)
    questions.write_text(f"Which bird sings?\nWhich bird swims?\n{site.url}/slow\tWhat is slow?\n")
    command = [*COMMAND, *crawl(site, questions, out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while "/slow" not in site.paths() and run.poll() is None:
            time.sleep(0.02)
        run.send_signal(how)
        _, said = run.communicate(timeout=60)

    assert run.returncode == status
    if how is signal.SIGINT:
        assert "interrupted; what was collected is kept, and the same command goes on from there" in said
        assert "Traceback" not in said
    site.page("/slow", "It takes a while no more.")
    done = collect(*crawl(site, questions, out))
    assert done.returncode == 0, done.stderr
    assert asked(read_trace(out)) == ["Which bird sings?", "Which bird swims?", "What is slow?"]
    assert site.paths().count("/") == 2  # the first two were not asked again


def test_other_options_than_the_traces_are_refused(site: Site, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.jsonl"
    assert collect(*crawl(site, questions, out)).returncode == 0
    done = collect(*crawl(site, questions, out, "--pages", 3))

    assert done.returncode == 2
    assert "holds another trace: its `description` is" in done.stderr
    assert "use the same options or another file" in done.stderr
    assert asked(read_trace(out)) == list(QUESTIONS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["crawl"], "give --questions FILE or --question TEXT"),
        (["crawl", "--question", "Why?"], "give --start URL"),
        (["crawl", "--question", "Why?", "--start", "docs.example.org"], "'docs.example.org', which is no http://"),
        (["crawl", "--question", " ", "--start", "http://x.example/"], "no question in it"),
        (["crawl", "--questions", "nowhere.txt"], "'nowhere.txt' does not exist"),
        (["anns", "--question", "Why?", "--documents", "nowhere"], "'nowhere' does not exist"),
        (["anns", "--question", "Why?", "--documents", "."], "no document in it; what is read: .txt, .md"),
    ],
)
def test_wrong_input_is_one_message_and_exit_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = collect(*options, "-o", "trace.jsonl")

    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "trace.jsonl").exists()


def test_a_file_that_cannot_be_written_is_exit_status_2(site: Site, questions: Path, tmp_path: Path) -> None:
    done = collect(*crawl(site, questions, tmp_path / "nowhere" / "trace.jsonl"))

    assert done.returncode == 2
    assert "No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_searches_a_folder_and_keeps_the_index_beside_the_trace(questions: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "notes", tmp_path / "search.jsonl"
    folder.mkdir()
    for name, text in (("night", "The nightingale sings."), ("duck", "The duck swims."), ("owl", "The owl hunts.")):
        (folder / f"{name}.md").write_text(text)
    options = ("anns", "--documents", folder, "--questions", questions, "-o", out, "--top-k", 2)
    done = collect(*options)

    assert done.returncode == 0, done.stderr
    trace = read_trace(out)
    assert trace.header.workload == "anns"
    assert asked(trace) == list(QUESTIONS)
    assert [query.context[0] for query in trace.queries] == ["night.md#1", "duck.md#1", "owl.md#1"]
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "search.index").iterdir()}
    assert kept.keys() == {"passages.jsonl", "vectors.f32", "index.faiss"}

    assert collect(*options).returncode == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "search.index").iterdir()} == kept
    assert read_trace(out) == trace
