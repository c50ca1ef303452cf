"""vLLM's queue of waiting requests, in the order of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from stream2llm.ranking import Rank, Ranking


class PolicyQueue(RequestQueue):
    """Keeps its order as requests come and go. A request that is put back takes the place that its rank gives it."""

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self._rank = rank
        self._ranking: Ranking[Request] = Ranking()

    def add_request(self, request: Request) -> None:
        self._ranking.put(request.request_id, self._rank(request), request)

    def pop_request(self) -> Request:
        request = self.peek_request()
        self._ranking.discard(request.request_id)
        return request

    def peek_request(self) -> Request:
        first = self._ranking.first()
        if first is None:
            raise IndexError("peek from an empty queue")
        return first[1]

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self._ranking.discard(request.request_id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._ranking.discard(request.request_id)

    def rerank(self, request: Request) -> None:
        """The request has changed. Nothing happens if it is not here."""
        if request.request_id in self._ranking:
            self.add_request(request)

    def ranked(self) -> Iterator[tuple[Rank, Request]]:
        """The requests and their ranks, in order. Not to be changed meanwhile."""
        return self._ranking.ranked()

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and request.request_id in self._ranking

    def __bool__(self) -> bool:
        return bool(len(self._ranking))

    def __len__(self) -> int:
        return len(self._ranking)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._ranking)
