import httpx
import pytest

import stream2llm as s2
from stream2llm.client.errors import error_from


def vllm_body(message, param=None, code=400):
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": code}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, vllm_body("bad"), s2.InvalidRequest),
        (422, vllm_body("bad"), s2.InvalidRequest),
        (400, vllm_body("This model's maximum context length is 8192 tokens.", "input_tokens"), s2.ContextTooLong),
        (401, {"error": "Unauthorized"}, s2.AuthenticationError),
        (403, "", s2.AuthenticationError),
        (404, vllm_body("The model `x` does not exist.", "model"), s2.ModelNotFound),
        (404, vllm_body("No context stream cs_1."), s2.StreamNotFound),
        (409, vllm_body("The stream is finished."), s2.StreamFinished),
        (409, vllm_body("expected_version is 3, the stream's is 4."), s2.StreamConflict),
        (429, "", s2.ServerUnavailable),
        (500, "oops", s2.ServerUnavailable),
        (503, vllm_body("overloaded"), s2.ServerUnavailable),
    ],
)
def test_a_status_and_its_body_become_the_fitting_exception(status, body, kind):
    content = {"json": body} if isinstance(body, dict) else {"text": body}
    error = error_from(httpx.Response(status, **content))
    assert type(error) is kind
    assert isinstance(error, s2.Stream2LLMError)
    assert error.status == status


def test_message_and_param_are_the_servers():
    error = error_from(httpx.Response(400, json=vllm_body("ttl must be greater than 0", "ttl")))
    assert (str(error), error.message, error.param) == ("ttl must be greater than 0",) * 2 + ("ttl",)


def test_a_proxys_page_without_json_keeps_its_text():
    assert "Bad Gateway" in str(error_from(httpx.Response(502, text="<h1>Bad Gateway</h1>")))


def test_an_empty_body_is_named_by_its_status():
    assert str(error_from(httpx.Response(503, text=""))) == "Service Unavailable"


def test_fastapis_own_format_is_read():
    assert str(error_from(httpx.Response(404, json={"detail": "Not Found"}))) == "Not Found"
