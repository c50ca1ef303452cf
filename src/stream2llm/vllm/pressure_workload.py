"""What `stream2llm check pressure` asks of the engine: streams that want memory at the same time. Pure: no engine.

Times are shares of the seconds that the engine would take to compute every prompt once, so that a workload presses a
slow engine and a fast one alike. There are two stages: the streams are opened and grow; then, when the engine has
computed what there is memory for, each is written to once more and ends.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

QUESTION = 15  # tokens that a final prompt has more than its context, at most
LONG_ANSWER = 32  # tokens; long enough to decode while others press
_SHORT_ANSWERS = (1, 2, 4)
_OPENING = 0.3  # the streams are opened over this time, and plain requests come
_PAUSE = 0.12  # between two writes, at most
_ASKING = 0.4  # the last writes, and then the final requests, come over this time; plain requests over both


class Fate(StrEnum):
    """How a stream ends."""

    FINISHED = "finished"  # by its final request
    ABORTED = "aborted"  # its final request is aborted
    CLOSED = "closed"
    ABANDONED = "abandoned"  # left alone with all that it holds, until the run is over


_FATES = {3: Fate.ABANDONED, 11: Fate.ABANDONED, 5: Fate.CLOSED, 13: Fate.ABORTED}  # of 16 streams


@dataclass(frozen=True, slots=True)
class StreamCase:
    """`versions` are whole prompts, the last of which is written in the second stage; `pauses[n]` is the time before
    version n, since the one before or since the stage began. The last pause is the one before the stream's end."""

    number: int
    versions: tuple[tuple[int, ...], ...]
    pauses: tuple[float, ...]
    final: tuple[int, ...]
    answer_tokens: int
    fate: Fate

    @property
    def largest(self) -> int:
        """Tokens of the largest prompt, its answer included."""
        final = len(self.final) + self.answer_tokens if self.fate in (Fate.FINISHED, Fate.ABORTED) else 0
        return max(final, *map(len, self.versions))


@dataclass(frozen=True, slots=True)
class PlainCase:
    """A request that names no stream, sent at `time` of the first or the second stage."""

    number: int
    first_stage: bool
    time: float
    prompt: tuple[int, ...]
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    streams: tuple[StreamCase, ...]
    plain: tuple[PlainCase, ...]

    @property
    def finals(self) -> list[StreamCase]:
        """The streams whose final request is answered."""
        return [case for case in self.streams if case.fate is Fate.FINISHED]

    @property
    def tokens_asked(self) -> int:
        """Tokens of the complete requests and their answers. The last token of an answer is sampled only."""
        finals = sum(len(case.final) + case.answer_tokens - 1 for case in self.finals)
        return finals + sum(len(case.prompt) + case.answer_tokens - 1 for case in self.plain)

    @property
    def tokens_unanswered(self) -> int:
        """Tokens of the contexts that were sent and then closed, aborted or abandoned."""
        return sum(len(case.versions[-1]) for case in self.streams if case.fate is not Fate.FINISHED)

    def wanted_blocks(self, block_tokens: int) -> int:
        """The KV blocks of every stream's largest prompt together."""
        return sum(math.ceil(case.largest / block_tokens) for case in self.streams)


def draw(streams: int, seed: int, longest: int, text: Sequence[int]) -> Workload:
    """`streams` streams and a quarter as many plain requests, of prompts cut from `text`, `longest` tokens at most.

    Every third write after a stream's first replaces a stretch in the middle of the prompt, the others append.
    """
    rng = random.Random(f"{seed}/{streams}/{longest}")
    cases = [_stream(number, rng, streams, longest, text) for number in range(streams)]
    plain = [_plain(number, rng, longest, text) for number in range(math.ceil(streams / 4))]
    return Workload(tuple(cases), tuple(plain))


def _stream(number: int, rng: random.Random, streams: int, longest: int, text: Sequence[int]) -> StreamCase:
    later = rng.randint(2, 4)
    replacements = [(number + write) % 3 == 0 for write in range(later)]
    size = rng.randint(longest * 5 // 8, longest - QUESTION)
    appended = size // (1 + later - sum(replacements))
    prompt = _piece(rng, text, appended)
    versions = [tuple(prompt)]
    for replaces in replacements:
        if replaces:
            middle = rng.randint(len(prompt) // 4, len(prompt) // 2)
            length = rng.randint(1, len(prompt) // 4)
            stretch = _piece(rng, text, length)
            prompt = prompt[:middle] + stretch + prompt[middle + length :]
        else:
            prompt = prompt + _piece(rng, text, appended)
        versions.append(tuple(prompt))
    question = _piece(rng, text, rng.randint(1, QUESTION)) if rng.random() < 0.85 else []
    opened = _OPENING * number / streams
    return StreamCase(
        number,
        tuple(versions),
        pauses=(
            opened,
            *(rng.random() * _PAUSE for _ in range(later - 1)),
            rng.random() * _ASKING,
            rng.random() * _ASKING,
        ),
        final=(*prompt, *question),
        answer_tokens=LONG_ANSWER if number % 8 == 6 else rng.choice(_SHORT_ANSWERS),
        fate=_FATES.get(number % 16, Fate.FINISHED),
    )


def _plain(number: int, rng: random.Random, longest: int, text: Sequence[int]) -> PlainCase:
    prompt = _piece(rng, text, rng.randint(longest // 8, longest // 2))
    first = number % 2 == 0
    time = rng.random() * (_OPENING if first else 2 * _ASKING)
    return PlainCase(number, first, time, tuple(prompt), rng.choice(_SHORT_ANSWERS))


def _piece(rng: random.Random, text: Sequence[int], length: int) -> list[int]:
    start = rng.randrange(len(text) - length)
    return list(text[start : start + length])
