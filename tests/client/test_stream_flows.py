"""Whatever the network and the server do, the server holds what the client's user wrote, once."""

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream2llm import (
    Client,
    InvalidRequest,
    ModelNotFound,
    RetryPolicy,
    ServerUnavailable,
    StreamConflict,
    StreamFinished,
)

from .scripted_server import AT_ONCE, LATE, LOSE_ANSWER, LOSE_REQUEST, RESTART, ScriptedServer


def client(server, retry=AT_ONCE):
    return Client("http://server", transport=server.transport, retry=retry)


def busy():
    return httpx.Response(503, json={"error": {"message": "busy"}})


@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_ANSWER, LATE, busy(), httpx.Response(502, text="proxy")])
@pytest.mark.parametrize("how", ["append", "replace"])
def test_a_write_is_carried_out_once(fault, how):
    server = ScriptedServer([None, fault])
    with client(server).stream(text="a") as stream:
        ack = getattr(stream, how)("b")
        assert server.content(stream.id) == {"text": "ab" if how == "append" else "b"}
        assert (ack.version, stream.version) == (2, 2)


@pytest.mark.parametrize("content", [{}, {"text": "a"}, {"token_ids": [1, 2]}])
def test_opening_is_carried_out_once(content):
    server = ScriptedServer([LOSE_ANSWER])
    with client(server).stream(**content) as stream:
        assert list(server.streams) == [stream.id]
        assert stream.version == len(content)


@settings(deadline=None, max_examples=300)
@given(
    writes=st.lists(st.tuples(st.sampled_from(["append", "replace"]), st.text("xyz🎉", max_size=3)), max_size=8),
    faults=st.lists(st.sampled_from([None, LOSE_REQUEST, LOSE_ANSWER, LATE, RESTART, "busy"]), max_size=30),
)
def test_any_faults_leave_the_content_as_written(writes, faults):
    server = ScriptedServer([busy() if fault == "busy" else fault for fault in faults])
    expected = ""
    with client(server, RetryPolicy(retries=40, first_delay=0.0)).stream(text="") as stream:
        for how, text in writes:
            getattr(stream, how)(text)
            expected = expected + text if how == "append" else text
        assert stream.complete(prompt="?").text == expected + "?"


@settings(deadline=None, max_examples=300)
@given(
    writes=st.lists(st.text("xyz", min_size=1, max_size=3), max_size=8),
    faults=st.lists(st.sampled_from([None, LOSE_REQUEST, LOSE_ANSWER, LATE, RESTART]), max_size=30),
)
def test_a_write_that_was_given_up_is_not_in_the_answer_and_one_that_was_not_is(writes, faults):
    server = ScriptedServer([None, *faults])
    written = "start "
    with client(server, RetryPolicy(retries=0)).stream(text=written) as stream:
        for text in writes:
            try:
                stream.append(text)
            except ServerUnavailable:
                continue
            written += text
        for _ in range(3 * len(faults) + 1):
            try:
                answer = stream.complete(prompt="?")
            except ServerUnavailable:
                continue
            assert answer.text == written + "?"
            return
        pytest.fail("no answer")


def test_a_lost_stream_is_opened_again_under_its_id_with_all_that_was_written():
    server = ScriptedServer([None, None, RESTART])
    with client(server).stream(text="a", ttl=30, cache_salt="s") as stream:
        first_id = stream.id
        stream.append("b")
        ack = stream.append("c")
        assert (ack.reopened, ack.version, stream.id) == (True, 1, first_id)
        assert server.content(first_id) == {"text": "abc"}
    first, again = server.calls("POST", "/context_streams")
    assert first == {"id": first_id, "text": "a", "ttl": 30, "cache_salt": "s"}
    assert again == first | {"text": "abc"}


def test_a_stream_lost_before_the_question_is_opened_again():
    server = ScriptedServer([None, None, RESTART])
    with client(server).stream(text="a") as stream:
        stream.append("b")
        assert stream.complete(prompt="?").text == "ab?"


def test_text_of_a_chat_message_survives_a_restart():
    server = ScriptedServer([None, RESTART])
    with client(server).stream(messages=[{"role": "user", "content": "Pages: "}]) as stream:
        stream.append("one")
        assert server.content(stream.id) == {"messages": [{"role": "user", "content": "Pages: one"}]}


def test_another_writer_is_a_conflict_that_tells_the_version():
    server = ScriptedServer()
    with client(server).stream(text="a") as stream:
        server.streams[stream.id].update(content={"text": "theirs"}, version=5)
        with pytest.raises(StreamConflict) as raised:
            stream.append("b")
        assert raised.value.version == 5
        assert server.content(stream.id) == {"text": "theirs"}


def test_another_writers_version_is_not_taken_for_a_lost_write():
    server = ScriptedServer([None, LOSE_REQUEST, httpx.Response(500)])
    with client(server).stream(text="a") as stream:
        server.streams[stream.id].update(content={"text": "theirs"}, version=2)
        with pytest.raises(StreamConflict):
            stream.append("b")


def test_a_taken_id_is_a_conflict():
    server = ScriptedServer()
    ours = client(server)
    with ours.stream(id="mine", text="a"), pytest.raises(StreamConflict), ours.stream(id="mine", text="b"):
        pass


def test_a_lost_answer_is_asked_for_anew_with_the_same_prompt():
    server = ScriptedServer([None, LOSE_ANSWER])
    with client(server).stream(text="a") as stream:
        first_id = stream.id
        assert stream.complete(prompt="?").text == "a?"
        assert stream.id != first_id


def test_a_refused_completion_leaves_the_stream_open():
    server = ScriptedServer()
    with client(server).stream(text="a") as stream:
        with pytest.raises(InvalidRequest) as raised:
            stream.complete(prompt="?", max_tokens=0)
        assert raised.value.param == "max_tokens"
        stream.append("b")
        assert stream.complete(prompt="?", max_tokens=1).text == "ab?"


def test_a_stream_finished_elsewhere_cannot_be_written_or_finished():
    server = ScriptedServer()
    with client(server).stream(text="a") as stream:
        server.streams[stream.id]["state"] = "finished"
        with pytest.raises(StreamFinished):
            stream.append("b")
        with pytest.raises(StreamFinished):
            stream.complete(prompt="?")


def test_a_model_the_server_does_not_have_is_named_not_worked_around():
    refusal = {"error": {"message": "The model `x` does not exist.", "param": "model", "code": 404}}
    server = ScriptedServer([httpx.Response(404, json=refusal)])
    with pytest.raises(ModelNotFound, match="`x`"), client(server).stream(text="a", model="x"):
        pass


def test_a_server_that_is_something_else_asks_for_the_address():
    server = ScriptedServer(plugin=False, models=False)
    with pytest.raises(ServerUnavailable, match="check the address"), client(server).stream(text="a"):
        pass
