"""When and after how long a request is sent again."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

from stream2llm.client.errors import ServerUnavailable, Stream2LLMError, error_from
from stream2llm.client.flow import Flow, Pause, Send

_RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
# These fail before a byte of the request has left, so the server cannot have acted on it.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_HOPELESS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.TooManyRedirects)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter.

    `retries` is how often a request is sent again, `first_delay` and `longest_delay` are in seconds. A server's
    Retry-After is obeyed up to `longest_retry_after` seconds; with a longer one the error is raised at once.
    """

    retries: int = 4
    first_delay: float = 0.1
    longest_delay: float = 5.0
    longest_retry_after: float = 60.0

    def __post_init__(self) -> None:
        if self.retries < 0 or min(self.first_delay, self.longest_delay, self.longest_retry_after) < 0:
            raise ValueError("retries and delays must not be negative")

    def delay(self, retry: int, spread: Callable[[], float] = random.random) -> float:
        """Seconds before retry number `retry` (from 0): half fixed, half random, so that clients spread out."""
        full = min(self.longest_delay, self.first_delay * 2.0 ** min(retry, 60))
        return full * (0.5 + 0.5 * spread())


@dataclass(frozen=True, slots=True)
class Exchange:
    """A response, and whether an earlier attempt, whose answer was lost, may have been carried out."""

    response: httpx.Response
    uncertain: bool


def exchange(request: Send, policy: RetryPolicy) -> Flow[Exchange]:
    """Send `request`, again on connection errors, timeouts, 429 and 5xx.

    Raises `ServerUnavailable` when the retries are used up. A request for an answer is not repeated after a read
    timeout: the answer would take as long again.
    """
    uncertain = False
    for retry in range(policy.retries + 1):
        wait = policy.delay(retry)
        try:
            response = yield request
        except httpx.RequestError as error:
            failure = _unreachable(request, error)
            if isinstance(error, _HOPELESS) or (request.answer and isinstance(error, httpx.ReadTimeout)):
                raise failure from None
            uncertain = uncertain or not isinstance(error, _NOT_SENT)
        else:
            if response.status_code not in _RETRIED_STATUSES:
                return Exchange(response, uncertain)
            failure = error_from(response)
            uncertain = uncertain or response.status_code >= 500
            asked = retry_after(response.headers.get("retry-after"))
            if asked is not None and asked > policy.longest_retry_after:
                raise failure
            wait = max(wait, asked or 0.0)
        if retry == policy.retries:
            raise failure from None  # the message has it all; a transport's traceback of a hundred lines buries it
        yield Pause(wait)
    raise AssertionError("unreachable: the last attempt returns or raises")


def retry_after(header: str | None, now: dt.datetime | None = None) -> float | None:
    """Seconds that a Retry-After header (a number or an HTTP date) asks for; None without a valid one."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return None
        date = date if date.tzinfo else date.replace(tzinfo=dt.UTC)
        seconds = (date - (now or dt.datetime.now(dt.UTC))).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None


def _unreachable(request: Send, error: httpx.RequestError) -> Stream2LLMError:
    what = f"{request.method} {_url_of(error) or request.path}"
    if isinstance(error, httpx.TimeoutException):
        return ServerUnavailable(f"{what}: no answer in time ({type(error).__name__}); a longer timeout may help")
    hint = "; is the server running?" if isinstance(error, httpx.ConnectError) else ""
    return ServerUnavailable(f"{what}: {error or type(error).__name__}{hint}")


def _url_of(error: httpx.RequestError) -> str | None:
    try:
        return str(error.request.url)
    except RuntimeError:  # raised by a transport that does not tell
        return None
