import datetime as dt
import traceback

import httpx
import pytest

from stream2llm import AuthenticationError, Client, RetryPolicy, ServerUnavailable
from stream2llm.client.flow import Pause, Send, run
from stream2llm.client.retry import Exchange, exchange, retry_after

WRITE = Send("POST", "/write")
ANSWER = Send("POST", "/answer", answer=True)
OK = httpx.Response(200)


def play(script, request=WRITE, policy=None):
    """Runs an exchange on a script of responses and exceptions; returns its outcome and the pauses made."""
    pauses, outcomes = [], iter(script)

    def perform(step):
        if isinstance(step, Pause):
            pauses.append(step.seconds)
            return None
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return run(exchange(request, policy or RetryPolicy()), perform), pauses


def test_a_first_success_is_certain_and_takes_no_pause():
    assert play([OK]) == (Exchange(OK, uncertain=False), [])


@pytest.mark.parametrize(
    ("failure", "uncertain"),
    [
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout("slow"), False),
        (httpx.PoolTimeout("busy"), False),
        (httpx.ReadTimeout("slow"), True),
        (httpx.ReadError("reset"), True),
        (httpx.RemoteProtocolError("closed"), True),
        (httpx.Response(429), False),
        (httpx.Response(500), True),
        (httpx.Response(503), True),
    ],
)
def test_what_may_pass_is_tried_again_and_remembers_whether_it_may_have_been_carried_out(failure, uncertain):
    outcome, pauses = play([failure, OK])
    assert outcome == Exchange(OK, uncertain=uncertain)
    assert len(pauses) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422, 501])
def test_what_would_not_change_is_answered_at_once(status):
    refusal = httpx.Response(status)
    assert play([refusal]) == (Exchange(refusal, uncertain=False), [])


def test_retries_end_and_the_error_tells_what_and_why():
    with pytest.raises(ServerUnavailable, match=r"POST /write: refused"):
        play([httpx.ConnectError("refused")] * 3, policy=RetryPolicy(retries=2))


def test_the_traceback_of_a_refused_connection_is_the_clients_alone():
    client = Client("http://127.0.0.1:9", retry=RetryPolicy(retries=1, first_delay=0))
    with pytest.raises(ServerUnavailable, match="is the server running") as raised:
        client.streams()
    assert "ConnectError" not in "".join(traceback.format_exception(raised.value))


def test_the_last_status_is_in_the_error():
    with pytest.raises(ServerUnavailable) as raised:
        play([httpx.Response(503)] * 3, policy=RetryPolicy(retries=2))
    assert raised.value.status == 503


def test_an_answer_that_takes_too_long_is_not_asked_for_again():
    with pytest.raises(ServerUnavailable, match="longer timeout"):
        play([httpx.ReadTimeout("slow"), OK], ANSWER)


def test_a_wrong_address_is_not_tried_again():
    with pytest.raises(ServerUnavailable, match="ftp"):
        play([httpx.UnsupportedProtocol("no ftp://"), OK])


def test_retry_after_is_waited_for():
    _, pauses = play([httpx.Response(503, headers={"retry-after": "7"}), OK])
    assert pauses == [7.0]


def test_a_retry_after_beyond_the_limit_is_an_error_at_once():
    with pytest.raises(ServerUnavailable):
        play([httpx.Response(429, headers={"retry-after": "3600"}), OK])


def test_pauses_grow_to_the_limit_and_spread():
    policy = RetryPolicy(first_delay=1.0, longest_delay=5.0)
    assert [policy.delay(n, spread=lambda: 1.0) for n in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert [policy.delay(n, spread=lambda: 0.0) for n in range(3)] == [0.5, 1.0, 2.0]
    assert policy.delay(10_000) <= 5.0


def test_a_negative_policy_is_refused():
    with pytest.raises(ValueError, match="negative"):
        RetryPolicy(retries=-1)


NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("nan", None),
        ("soon", None),
        ("Thu, 01 Jan 2026 00:00:09 GMT", 9.0),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
    assert retry_after(header, NOW) == seconds


def test_errors_that_are_not_about_the_network_pass_through():
    with pytest.raises(AuthenticationError):
        play([AuthenticationError("no key")])
