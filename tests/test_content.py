from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm import content
from stream2llm.content import ContentError, Messages, Text, TokenIds

ANY_TEXT = st.text(st.characters(codec=None), max_size=40)
EMOJI = "\N{GRINNING FACE}"
HIGH, LOW = "\ud83d", "\ude00"  # the halves of EMOJI


def user(said: object) -> dict[str, object]:
    return {"role": "user", "content": said}


def write(value: object) -> content.Content:
    match value:
        case str():
            return content.text(value)
        case [int(), *_]:
            return content.token_ids(value)
    return content.messages(value)  # type: ignore[arg-type]


class TestText:
    def test_appends_make_one_text(self) -> None:
        held = content.append(content.append(None, content.text("con")), content.text("text"))
        assert held == Text("context")

    def test_an_empty_append_changes_nothing(self) -> None:
        assert content.append(content.text("a"), content.text("")) == Text("a")

    def test_nul_and_other_control_characters_are_text(self) -> None:
        assert content.text("a\0b\x1b").text == "a\0b\x1b"

    def test_a_pair_cut_in_two_is_put_together(self) -> None:
        held = content.append(content.text("a" + HIGH), content.text(LOW + "b"))
        assert held == Text(f"a{EMOJI}b")

    def test_a_pair_cut_in_two_survives_an_empty_append_between(self) -> None:
        halves = [content.text(HIGH), content.text(""), content.text(LOW)]
        assert content.append(content.append(halves[0], halves[1]), halves[2]) == Text(EMOJI)

    def test_half_a_pair_without_its_partner_becomes_the_replacement_character(self) -> None:
        assert content.text(LOW + "a" + HIGH + "b").closed == "\ufffda\ufffdb"
        assert content.text("a" + HIGH).closed == "a\ufffd"
        assert content.append(content.text("a" + HIGH), content.text("b")) == Text("a\ufffdb")

    @given(st.lists(ANY_TEXT, max_size=6))
    def test_it_can_always_be_encoded(self, parts: list[str]) -> None:
        held = content.text("")
        for part in parts:
            held = content.append(held, content.text(part))  # type: ignore[assignment]
        held.closed.encode()

    @given(st.text(), st.data())
    def test_the_utf16_halves_of_any_text_make_that_text(self, whole: str, data: st.DataObject) -> None:
        units = whole.encode("utf-16-le", "surrogatepass")
        cut = 2 * data.draw(st.integers(0, len(units) // 2))
        first, second = (part.decode("utf-16-le", "surrogatepass") for part in (units[:cut], units[cut:]))
        assert content.append(content.text(first), content.text(second)) == Text(whole)


class TestTokenIds:
    def test_appends_are_joined(self) -> None:
        held = content.append(content.token_ids([1, 2]), content.token_ids([3]))
        assert isinstance(held, TokenIds)
        assert list(held.ids) == [1, 2, 3]

    def test_an_empty_list_is_content(self) -> None:
        assert content.append(None, content.token_ids([])) == TokenIds(content.token_ids([]).ids)

    @pytest.mark.parametrize("out_of_range", [-1, 2**32])
    def test_ids_that_no_vocabulary_has_are_refused(self, out_of_range: int) -> None:
        with pytest.raises(ContentError, match="token_ids"):
            content.token_ids([out_of_range])


class TestMessages:
    def test_messages_are_appended_to_messages(self) -> None:
        held = content.append(content.messages([user("a")]), content.messages([user("b")]))
        assert held == Messages((user("a"), user("b")))

    def test_text_continues_the_last_message(self) -> None:
        held = content.append(content.messages([user("a"), user("b")]), content.text("c"))
        assert held == Messages((user("a"), user("bc")))

    def test_text_continues_the_last_text_part(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "x"}}
        parts = [image, {"type": "text", "text": "b"}]
        held = content.append(content.messages([user(parts)]), content.text("c"))
        assert held == Messages((user([image, {"type": "text", "text": "bc"}]),))

    def test_text_goes_behind_a_part_that_is_not_text(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "x"}}
        held = content.append(content.messages([user([image])]), content.text("c"))
        assert held == Messages((user([image, {"type": "text", "text": "c"}]),))

    def test_text_starts_the_content_of_a_message_that_has_none(self) -> None:
        held = content.append(content.messages([user(None)]), content.text("c"))
        assert held == Messages((user("c"),))

    def test_text_needs_a_message_to_continue(self) -> None:
        with pytest.raises(ContentError, match="Append a message first"):
            content.append(content.messages([]), content.text("c"))

    def test_a_pair_cut_in_two_is_put_together_across_a_continuation(self) -> None:
        held = content.append(content.messages([user("a" + HIGH)]), content.text(LOW))
        assert held == Messages((user("a" + EMOJI),))

    def test_the_open_end_is_closed_when_a_message_follows(self) -> None:
        held = content.append(content.messages([user("a" + HIGH)]), content.messages([user("b" + HIGH)]))
        assert isinstance(held, Messages)
        assert held.closed == [user("a\ufffd"), user("b\ufffd")]

    def test_what_was_written_is_not_changed_by_later_writes(self) -> None:
        first = content.messages([user([{"type": "text", "text": "a"}])])
        content.append(first, content.text("b"))
        assert first == Messages((user([{"type": "text", "text": "a"}]),))


@pytest.mark.parametrize(
    ("held", "more"),
    [("a", [1]), ("a", [user("b")]), ([1], "a"), ([1], [user("b")]), ([user("a")], [1])],
    ids=lambda value: type(value).__name__,
)
def test_other_mixtures_are_refused_and_the_message_says_what_to_do(held: object, more: object) -> None:
    with pytest.raises(ContentError, match=r"Append \w+, or replace the whole content"):
        content.append(write(held), write(more))


class TestPieces:
    """What the engine keeps is enough to have the content back, and an append adds no more than itself."""

    @given(st.lists(ANY_TEXT, min_size=1, max_size=6))
    def test_text(self, parts: list[str]) -> None:
        self.assert_kept([content.text(part) for part in parts])

    @given(st.lists(st.one_of(ANY_TEXT, st.lists(ANY_TEXT, max_size=3)), max_size=6), ANY_TEXT)
    def test_messages(self, parts: list[str | list[str]], first: str) -> None:
        writes = [content.text(p) if isinstance(p, str) else content.messages(map(user, p)) for p in parts]
        self.assert_kept([content.messages([user(first)]), *writes])

    def test_token_ids_are_not_kept_twice(self) -> None:
        held = content.token_ids([1, 2, 3])
        assert content.pieces_of(held) == []
        assert content.restore("token_ids", [], [1, 2, 3]) == held

    def test_a_stream_opened_empty_holds_nothing(self) -> None:
        assert content.restore(None, [], []) is None

    def test_they_are_plain_ascii_whatever_the_text_holds(self) -> None:
        (piece,) = content.pieces_of(content.text("é\0" + HIGH))
        assert piece.isascii()
        assert json.loads(piece) == "é\0" + HIGH

    @staticmethod
    def assert_kept(writes: list[content.Content]) -> None:
        held: content.Content | None = None
        pieces: list[str] = []
        for more in writes:
            held = content.append(held, more)
            pieces += content.pieces_of(more)
        assert held is not None
        assert content.restore(held.kind, pieces, []) == held
