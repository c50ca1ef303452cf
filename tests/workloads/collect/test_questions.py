"""What is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream2llm.workloads.collect.questions import Question, QuestionsError, read_questions


def test_a_line_is_a_question_once_with_its_start_page_before_a_tab(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("# comment\n\nWhat is it?\nhttps://x.example/a\tWhere?\nWhat is it?\nA\ttab in it\n  Blanks?  \n")

    assert read_questions(file) == (
        Question("What is it?"),
        Question("Where?", "https://x.example/a"),
        Question("A\ttab in it"),
        Question("Blanks?"),
    )


def test_a_question_has_the_same_id_everywhere_and_another_one_from_another_start() -> None:
    assert Question("What is it?").id == "4d59d48336fb"
    assert Question("What is it?", "http://x.example/").id != Question("What is it?").id


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\n# nothing\n", "no question in it; write one a line"), (b"caf\xe9?\n", "not UTF-8 text")],
)
def test_a_file_without_questions_is_an_error_that_names_it(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "questions.txt"
    file.write_bytes(content)

    with pytest.raises(QuestionsError, match=rf"questions\.txt: {said}"):
        read_questions(file)
