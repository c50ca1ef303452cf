import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream2llm.cli.chunks import BadInput, Form, Operation, operations, reads


def texts(data, form):
    return [operation.text for operation in operations(data, form)]


@given(st.text(), st.integers(1, 7))
def test_characters_may_be_cut_anywhere(text, size):
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    cut = [data[at : at + size] for at in range(0, len(data), size)]
    assert "".join(texts(cut, Form.AVAILABLE)) == data.decode()
    assert "".join(texts(cut, Form.LINES)) == data.decode()


def test_every_read_is_a_chunk():
    assert texts([b"one ", b"two\nthree"], Form.AVAILABLE) == ["one ", "two\nthree"]


def test_a_character_that_is_not_whole_waits_for_the_next_read():
    assert texts([b"\xf0\x9f", b"\x8e\x89!"], Form.AVAILABLE) == ["🎉!"]


def test_what_is_not_utf8_is_replaced_not_lost():
    assert texts([b"a\xffb", b"\xf0\x9f"], Form.AVAILABLE) == ["a\ufffdb", "\ufffd"]


def test_lines_keep_their_end_and_the_last_needs_none():
    assert texts([b"one\nt", b"wo\n\nthr", b"ee"], Form.LINES) == ["one\n", "two\n", "\n", "three"]


def test_a_line_ends_at_a_line_feed_only():
    text = "one\u2028still one\x0cand\r\n"
    assert texts([text.encode()], Form.LINES) == [text]


def test_a_line_is_there_as_soon_as_it_is_complete():
    def data():
        yield b"one\ntw"
        pytest.fail("the second read was waited for")

    assert next(operations(data(), Form.LINES)) == Operation("append", "one\n")


def test_operations_append_and_replace():
    lines = [{"op": "append", "text": "a"}, {"op": "replace", "text": "b\n"}]
    data = "\n\n".join(map(json.dumps, lines)).encode()
    assert list(operations([data], Form.JSONL)) == [Operation("append", "a"), Operation("replace", "b\n")]


@pytest.mark.parametrize(
    "line",
    ["{", "5", '{"op": "append"}', '{"op": "close", "text": "a"}', '{"op": "append", "text": 1}',
     '{"op": "append", "text": "a", "expected_version": 1}'],
)  # fmt: skip
def test_a_line_that_is_no_operation_is_named_by_its_number(line):
    data = b'{"op": "append", "text": "a"}\n' + line.encode()
    with pytest.raises(BadInput, match="line 2"):
        list(operations([data], Form.JSONL))


def test_reads_do_not_wait_for_more_than_there_is():
    reader, writer = os.pipe()
    os.write(writer, b"one")
    chunks = reads(reader)
    assert next(chunks) == b"one"
    os.write(writer, b"two")
    os.close(writer)
    assert list(chunks) == [b"two"]
    os.close(reader)
