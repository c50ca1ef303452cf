"""How fast a server prefills, measured by a few calls: what a load is matched to."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import accumulate
from statistics import median

import httpx

from stream2llm.client import Stream2LLMError
from stream2llm.costs import Curve
from stream2llm.workloads.replay.completions import Completions
from stream2llm.workloads.replay.content import Vocabulary
from stream2llm.workloads.replay.server import ServerError


class Prefills:
    """Times prefills of fresh prompts, one at a time, as a client sees them."""

    def __init__(self, completions: Completions, vocabulary: Vocabulary) -> None:
        self._completions = completions
        self._vocabulary = vocabulary
        self._dice = random.Random()

    async def seconds(self, tokens: int) -> float:
        """From sending a prompt of so many tokens to its first token. Raises `ServerError`."""
        ids = range(self._vocabulary.first, self._vocabulary.last + 1)
        prompt = [*self._dice.choices(ids, k=max(1, tokens - 1)), self._vocabulary.last]
        start = time.perf_counter()
        try:
            await self._completions.ask(prompt, max_tokens=1)
        except (Stream2LLMError, httpx.HTTPError) as error:
            raise ServerError(
                f"the server refuses a prompt of {len(prompt)} token ids between {self._vocabulary.first} and "
                f"{self._vocabulary.last}: {error}. Other ids: --vocabulary FIRST:LAST"
            ) from error
        return time.perf_counter() - start


async def prefill_curve(
    seconds: Callable[[int], Awaitable[float]], lengths: Iterable[int], *, repeats: int = 3, enough_s: float = 2.0
) -> Curve:
    """Seconds of a prefill by its tokens: at each length the median of `repeats` runs, which are spread over the time.

    Lengths behind the first that takes longer than `enough_s` are left out, but for the second one. The curve never
    falls: where a longer prompt happened to be faster, it takes as long as the shorter one. What `seconds` raises comes
    through.
    """
    grid = sorted(set(lengths))
    await seconds(grid[0])  # the first call pays for what the engine does only once
    first: list[float] = []
    for tokens in grid:
        first.append(await seconds(tokens))
        if first[-1] > enough_s and len(first) > 1:
            break
    grid = grid[: len(first)]
    rounds = [first, *[[await seconds(tokens) for tokens in grid] for _ in range(repeats - 1)]]
    medians = [median(times) for times in zip(*rounds, strict=True)]
    return Curve(tuple(map(float, grid)), tuple(accumulate(medians, max)))
