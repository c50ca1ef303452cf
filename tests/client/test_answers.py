import json

import httpx
import pytest

from stream2llm import Ack, AnswerInterrupted, ServerUnavailable
from stream2llm.client.answers import AnswerReader, Piece, ack_from, answer_from

REQUEST = httpx.Request("POST", "http://server/x")


def event(body):
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def text_event(text, reason=None, index=0):
    return event({"choices": [{"index": index, "text": text, "finish_reason": reason}]})


def read(*parts):
    reader = AnswerReader()
    return reader, [piece for part in parts for piece in reader.feed(part)]


def test_every_event_is_a_piece_and_the_text_is_their_sum():
    reader, pieces = read(text_event("Hel"), text_event("lo", "stop"), b"data: [DONE]\n\n")
    reader.end()
    assert [piece.text for piece in pieces] == ["Hel", "lo"]
    assert (reader.text, reader.finish_reason) == ("Hello", "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_the_network_may_cut_anywhere(size):
    data = text_event("schön 🎉\u2028next\u0085line") + text_event("!", "length") + b"data: [DONE]\n\n"
    reader, _ = read(*(data[at : at + size] for at in range(0, len(data), size)))
    reader.end()
    assert reader.text == "schön 🎉\u2028next\u0085line!"


def test_carriage_returns_and_comments_are_no_part_of_it():
    reader, _ = read(b": ping\r\n\r\n" + text_event("a", "stop").replace(b"\n", b"\r\n"))
    reader.end()
    assert reader.text == "a"


def test_a_chat_answers_opening_event_is_no_piece():
    def delta(reason=None, **fields):
        return event({"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]})

    _, pieces = read(delta(role="assistant", content=""), delta(content="Hi"), delta("stop", content=""))
    assert [(piece.text, piece.finish_reason) for piece in pieces] == [("Hi", None), ("", "stop")]


def test_an_unfinished_character_is_a_piece_without_text():
    assert [piece.text for piece in read(text_event(""), text_event("é", "stop"))[1]] == ["", "é"]


def test_further_choices_are_pieces_with_their_index():
    reader, pieces = read(text_event("a"), text_event("b", index=1))
    assert [(piece.index, piece.text) for piece in pieces] == [(0, "a"), (1, "b")]
    assert reader.text == "a"


def test_usage_comes_in_an_event_without_choices():
    reader, pieces = read(event({"choices": [], "usage": {"completion_tokens": 3}}))
    assert (reader.usage, pieces) == ({"completion_tokens": 3}, [])


def test_a_piece_keeps_the_raw_event():
    _, [piece] = read(event({"id": "x", "choices": [{"index": 0, "text": "a", "logprobs": {"tokens": ["a"]}}]}))
    assert piece.raw["choices"][0]["logprobs"] == {"tokens": ["a"]}


def test_an_error_in_the_middle_is_raised():
    reader, _ = read(text_event("a"))
    with pytest.raises(ServerUnavailable, match="engine died"):
        list(reader.feed(event({"error": {"message": "engine died", "code": 500}})))


@pytest.mark.parametrize("cause", [None, httpx.ReadError("reset")])
def test_a_broken_answer_is_an_error_with_what_had_come(cause):
    reader, _ = read(text_event("half an"))
    with pytest.raises(AnswerInterrupted) as raised:
        reader.end(cause)
    assert raised.value.text == "half an"
    assert raised.value.__cause__ is cause


def test_bytes_that_are_no_event_are_an_error():
    with pytest.raises(AnswerInterrupted, match="not an event"):
        list(AnswerReader().feed(b"data: <html>\n"))


def test_an_ack_ignores_what_newer_servers_add():
    body = {"id": "a", "object": "context_stream", "state": "ready", "version": 2, "tokens": 5, "news": 1}
    ack = ack_from(httpx.Response(200, json=body, request=REQUEST))
    assert ack == Ack(id="a", state="ready", version=2, tokens=5)


@pytest.mark.parametrize("content", [{"text": "<html>"}, {"json": []}, {"json": {"ok": True}}])
def test_a_success_that_is_no_ack_asks_for_the_address(content):
    with pytest.raises(ServerUnavailable, match="right address"):
        ack_from(httpx.Response(200, request=REQUEST, **content))


def test_an_answer_is_the_stock_body_with_shortcuts():
    body = {"choices": [{"text": "Paris", "finish_reason": "stop"}], "usage": {"total_tokens": 3}}
    response = httpx.Response(200, json=body, request=REQUEST)
    answer = answer_from(response)
    assert (answer, answer.text, answer.finish_reason) == (body, "Paris", "stop")
    assert answer.usage == {"total_tokens": 3}
    assert answer.response is response


def test_a_tool_call_has_no_text():
    body = {"choices": [{"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"}]}
    assert answer_from(httpx.Response(200, json=body, request=REQUEST)).text == ""


def test_a_success_that_is_no_answer_is_an_error():
    with pytest.raises(ServerUnavailable):
        answer_from(httpx.Response(200, json={"detail": "?"}, request=REQUEST))


def test_pieces_can_be_compared():
    assert Piece("a") == Piece("a", 0, None, {})
