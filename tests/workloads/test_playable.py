"""What a machine can serve, and what is said of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costs_profiles import profile
from stream2llm.costs import Mode
from stream2llm.workloads.events import Arm
from stream2llm.workloads.machines import Machine
from stream2llm.workloads.playable import check, longest_prompt
from stream2llm.workloads.setup import Setup
from stream2llm.workloads.trace import Kind, Operation, Piece, Query

MACHINE = Machine(profile(), kv_tokens=1600, host_tokens=16, longest=1001)  # prompts of up to 1,000 tokens


def query(**fields: Any) -> Query:
    """A context of 900 tokens that is replaced by one of 50, behind an opening of 20 and before a question of 10."""
    defaults: dict[str, Any] = {
        "id": "q",
        "question": Piece(tokens=10),
        "opening": Piece(tokens=20),
        "pieces": {"long": Piece(tokens=900), "short": Piece(tokens=50)},
        "operations": (Operation(Kind.APPEND, 1.0, ("long",)), Operation(Kind.REPLACE, 2.0, ("short",))),
    }
    return Query(**{**defaults, **fields})


def test_the_longest_prompt_may_be_one_that_was_replaced() -> None:
    assert longest_prompt(query()) == 920
    assert longest_prompt(query(question=Piece(tokens=900))) == 970  # the question is behind the last context alone


def test_what_fits_exactly_is_served() -> None:
    check([query(opening=Piece(tokens=100)), query(id="r", question=Piece(tokens=930))], MACHINE, Setup())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"opening": Piece(tokens=101)},
            "query 'q': its longest prompt has 1001 tokens; the machine serves up to 1000",
        ),
        (
            {"question": Piece(tokens=931)},
            "query 'q': its longest prompt has 1001 tokens; the machine serves up to 1000",
        ),
        ({"lead_s": 1.1e8}, r"query 'q': its retrieval takes 1.1e\+08 s, the limit is 1e\+08 s"),
        (
            {
                "opening": Piece(tokens=0),
                "question": Piece(text=""),
                "operations": (Operation(Kind.APPEND, 1.0, ("long",)), Operation(Kind.REPLACE, 2.0, ())),
            },
            "query 'q': its final prompt is empty; it must have a token at least",
        ),
    ],
)
def test_what_cannot_be_served_is_named_with_its_limit(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        check([query(id="before"), query(**fields)], MACHINE, Setup())


def test_two_queries_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="there are two queries with the `id` 'q'; ids must be unique"):
        check([query(), query(id="r"), query()], MACHINE, Setup())


def test_swapping_needs_room_for_a_block_in_the_host_tier() -> None:
    without = replace(MACHINE, host_tokens=15)
    check([query()], MACHINE, Setup(preemption=Mode.SWAP))
    check([query()], without, Setup(preemption=Mode.COST))
    check([query()], without, Setup(Arm.WAIT, preemption=Mode.SWAP))
    with pytest.raises(ValueError, match="its `host_tokens` must be 16 or more"):
        check([query()], without, Setup(preemption=Mode.SWAP))
