from __future__ import annotations

from stream2llm.vllm.offload.copies import runs


def test_copies_of_neighbours_to_neighbours_are_joined() -> None:
    assert list(runs([(4, 0), (5, 1), (6, 2), (9, 3), (8, 4), (1, 7), (2, 8)])) == [
        (4, 0, 3),
        (9, 3, 1),
        (8, 4, 1),
        (1, 7, 2),
    ]


def test_nothing_to_copy_has_no_runs() -> None:
    assert list(runs([])) == []
