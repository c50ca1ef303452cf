import logging
import threading

import httpx
import pytest

from stream2llm import Client, InvalidRequest, ServerUnavailable, StreamFinished

from .scripted_server import AT_ONCE, ScriptedServer


@pytest.fixture
def scripted():
    return ScriptedServer()


@pytest.fixture
def client(scripted):
    with Client("http://server", transport=scripted.transport, retry=AT_ONCE) as client:
        yield client


def test_content_grows_is_replaced_and_is_answered(client, scripted):
    with client.stream(text="page one. ") as stream:
        assert stream.append("page two. ").version == 2
        assert stream.replace("page three. ").tokens == len("page three. ")
        answer = stream.complete(prompt="Question?", max_tokens=64, temperature=0)
    assert answer.text == "page three. Question?"
    assert answer.usage["completion_tokens"] == 3
    assert scripted.calls("POST", "/completions") == [{"prompt": "Question?", "max_tokens": 64, "temperature": 0}]


@pytest.mark.parametrize(
    ("content", "more", "prompt", "text"),
    [
        ({"token_ids": [1, 2]}, {"token_ids": [3]}, [4], "[1, 2, 3, 4]"),
        ({"token_ids": [1, 2]}, {"token_ids": [3]}, None, "[1, 2, 3]"),
        ({}, {"text": "a"}, None, "a"),
    ],
)
def test_every_kind_of_content_is_finished_with_its_kind(client, content, more, prompt, text):
    with client.stream(**content) as stream:
        stream.append(**more)
        assert stream.complete(prompt).text == text


def test_messages_are_finished_by_chat(client, scripted):
    with client.stream(messages=[{"role": "system", "content": "Be brief."}]) as stream:
        stream.append(messages=[{"role": "user", "content": "Pages"}])
        assert stream.chat([{"role": "user", "content": "Question?"}]).text == "Question?"


def test_chat_may_end_with_what_is_there(client, scripted):
    with client.stream(messages=[{"role": "user", "content": "Question?"}]) as stream:
        assert stream.chat(max_tokens=3).text == "Question?"
    assert scripted.calls("POST", "/chat/completions") == [{"max_tokens": 3, "messages": []}]


def test_a_streamed_answer_comes_in_pieces_with_usage_at_the_end(client):
    with client.stream(text="a b ") as stream:
        answer = stream.complete(prompt="c", stream=True)
        assert [piece.text for piece in answer] == ["a ", "b ", "c"]
    assert (answer.text, answer.finish_reason) == ("a b c", "stop")
    assert answer.usage["completion_tokens"] == 3
    assert answer.response.status_code == 200


def test_a_streamed_chat_answer_comes_in_pieces(client):
    with client.stream(messages=[{"role": "user", "content": "a b"}]) as stream:
        assert "".join(piece.text for piece in stream.chat(stream=True)) == "a b"


def test_leaving_the_block_closes_the_stream(client, scripted):
    with client.stream(text="a"):
        assert len(scripted.streams) == 1
    assert scripted.streams == {}


def test_leaving_the_block_by_an_error_closes_the_stream_and_keeps_the_error(client, scripted):
    with pytest.raises(KeyError), client.stream(text="a"):
        raise KeyError
    assert scripted.streams == {}


def test_leaving_the_block_after_a_completion_closes_nothing(client, scripted):
    with client.stream(text="a") as stream:
        stream.complete()
    assert scripted.calls("DELETE") == []


def test_leaving_an_answer_half_read_hangs_up(client):
    with client.stream(text="a b c") as stream:
        answer = stream.complete(stream=True)
        next(answer)
    assert answer.response.is_closed


def test_a_server_gone_at_the_end_is_logged_not_raised(scripted, caplog):
    dead = [None, *[httpx.Response(503)] * 9]
    client = Client("http://server", transport=ScriptedServer(dead).transport, retry=AT_ONCE)
    with caplog.at_level(logging.WARNING, "stream2llm"), client.stream(text="a") as stream:
        pass
    assert f"{stream.id} is left to expire" in caplog.text


def test_a_finished_stream_takes_no_more(client):
    with client.stream(text="a") as stream:
        stream.complete()
        with pytest.raises(StreamFinished, match="finished"):
            stream.append("b")
        with pytest.raises(StreamFinished):
            stream.complete()


def test_a_stream_is_used_inside_its_block(client):
    stream = client.stream(text="a")
    with pytest.raises(StreamFinished, match="with block"):
        stream.append("b")
    with stream:
        pass
    with pytest.raises(StreamFinished, match="closed"):
        stream.append("b")


@pytest.mark.parametrize("content", [{}, {"text": "a", "token_ids": [1]}])
def test_a_write_has_exactly_one_content(client, content):
    with client.stream() as stream, pytest.raises(InvalidRequest, match="exactly one"):
        stream.append(**content)


def test_a_stream_has_at_most_one_content(client):
    with pytest.raises(InvalidRequest):
        client.stream(text="a", messages=[])


MESSAGES = [{"role": "user", "content": "Pages"}]


@pytest.mark.parametrize(
    ("content", "kind"), [("a", "text"), (MESSAGES, "messages"), ([1, 2], "token_ids"), ((1, 2), "token_ids")]
)
def test_what_is_given_without_a_name_is_known_by_its_type(client, scripted, content, kind):
    value = content if kind != "token_ids" else [1, 2]
    with client.stream(content) as stream:
        stream.append(content)
        stream.replace(content)
    assert [body[kind] for body in scripted.calls("POST", "/context_streams")] == [value]
    assert [body[kind] for body in scripted.calls("POST", "/append")] == [value]
    assert [body[kind] for body in scripted.calls("PUT")] == [value]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (5, "not int"),
        (b"ab", "not bytes"),
        (MESSAGES[0], "not dict"),
        ([], "not an empty list"),
        (["a"], "not a list of str"),
        ([1, "a"], "not a list of int and str"),
        ([*MESSAGES, 1], "not a list of dict and int"),
    ],
)
def test_what_is_no_content_is_a_type_error_that_says_what_is_taken(client, scripted, content, found):
    with client.stream("a") as stream:
        for use in (client.stream, stream.append, stream.replace):
            with pytest.raises(TypeError, match=found):
                use(content)
        assert stream.append("b").version == 2
    assert scripted.calls("GET") == []


@pytest.mark.parametrize("content", [{"text": 5}, {"text": ["a"]}, {"messages": "a"}, {"messages": MESSAGES[0]}])
def test_content_given_by_name_is_of_that_kind(client, content):
    with pytest.raises(TypeError, match=r"(text is|messages are) .*, not"):
        client.stream(**content)


@pytest.mark.parametrize("held", [{"messages": MESSAGES}, {"token_ids": [1]}])
def test_a_replacement_changes_the_kind_only_by_name(client, scripted, held):
    with client.stream(**held) as stream:
        with pytest.raises(InvalidRequest, match=r"this stream holds \w+, not text: replace\(\w+=") as raised:
            stream.replace("new")
        assert raised.value.status is None
        assert scripted.calls("PUT") == []
        assert stream.replace(text="new").version == 2
        assert stream.replace("newer").version == 3
        assert stream.complete().text == "newer"


def test_an_empty_stream_takes_any_replacement(client):
    with client.stream() as stream:
        stream.replace(MESSAGES)
        assert stream.chat().text == "Pages"


def test_kinds_do_not_mix(client):
    with client.stream(text="a") as stream, pytest.raises(InvalidRequest, match="cannot be appended"):
        stream.append(token_ids=[1])


def test_several_threads_may_write(client, scripted):
    with client.stream(text="") as stream:
        threads = [threading.Thread(target=stream.append, args=("x",)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert scripted.content(stream.id) == {"text": "x" * 20}
        assert stream.version == 21


def test_the_address_may_end_in_v1_and_the_key_is_sent():
    seen = []

    def answer(request):
        seen.append(request)
        return httpx.Response(200, json={"data": []})

    Client("http://server:8000/v1/", "secret", transport=httpx.MockTransport(answer)).streams()
    assert str(seen[0].url) == "http://server:8000/v1/context_streams"
    assert seen[0].headers["authorization"] == "Bearer secret"


def test_the_clients_model_is_the_streams(scripted):
    client = Client("http://server", model="lora", transport=scripted.transport)
    with client.stream(text="a"), client.stream(text="b", model="other"):
        pass
    assert [body["model"] for body in scripted.calls("POST", "/context_streams")] == ["lora", "other"]


def test_writes_and_answers_have_their_own_timeouts():
    timeouts = {}

    def note(request):
        timeouts[request.url.path.rsplit("/")[-1]] = request.extensions["timeout"]["read"]
        return ScriptedServer()(request)

    client = Client("http://s", timeout=3, answer_timeout=60, transport=httpx.MockTransport(note), retry=AT_ONCE)
    with client.stream(text="a") as stream, pytest.raises(ServerUnavailable):
        stream.complete()
    assert timeouts == {"context_streams": 3, "completions": 60} | {stream.id: 3}


def test_status_reads_the_stream(client):
    with client.stream(text="abc") as stream:
        status = stream.status()
        assert (status.id, status.tokens, status.state) == (stream.id, 3, "ready")
        assert stream.ack.version == status.version


@pytest.mark.parametrize("text", ["\ud83d", "a\x00b", "ß🎉"])
def test_any_text_can_be_sent(client, text):
    with client.stream(text="") as stream:
        assert stream.append(text).version == 2
