from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream2llm.ranking import FIRST, Ranking

OPS = st.lists(st.tuples(st.sampled_from(["put", "discard"]), st.integers(0, 6), st.integers(0, 3)), max_size=40)


@given(OPS)
def test_a_ranking_is_what_sorting_anew_gives(ops: list[tuple[str, int, int]]) -> None:
    ranking: Ranking[int] = Ranking()
    entries: dict[str, int] = {}
    for op, number, rank in ops:
        id = f"i{number}"
        if op == "put":
            ranking.put(id, (rank,), number)
            entries[id] = rank
        else:
            assert ranking.discard(id) == (number if id in entries else None)
            entries.pop(id, None)
        expected = sorted(entries, key=lambda id: (entries[id], id))
        assert [f"i{number}" for number in ranking] == expected
        assert len(ranking) == len(expected)
        assert ranking.first() == (None if not expected else ((entries[expected[0]],), ranking[expected[0]]))
        assert all((id in ranking) == (id in entries) for id in map("i{}".format, range(7)))


def test_nothing_ranks_before_first() -> None:
    ranking: Ranking[str] = Ranking()
    ranking.put("b", (-1e9, 0), "b")
    ranking.put("a", FIRST, "a")
    assert list(ranking) == ["a", "b"]
