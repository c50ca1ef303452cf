"""Incremental tokenisation: the tokens of a text that shares a beginning with a text already tokenised.

Tokenising pieces and joining them gives other tokens than tokenising the whole. So a stretch of the old text before
the point of divergence is tokenised again together with the new text, and the result is used only if it runs into the
old tokens well before that point: the same ids at the same places, many in a row, up to the end of a word. Otherwise
a longer stretch is taken, in the end the whole text. The work is bounded by what is new, not by the prompt.
"""

from __future__ import annotations

import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stream2llm.stream import longest_common_prefix

REACHES = (48, 384)
"""How many tokens before the divergence are tokenised again, first and second try."""
AGREEMENT = 8
"""At least so many tokens in a row must agree."""
LOOKAHEAD = 64
"""Characters before the divergence that the new text may still change (normalisers, special tokens)."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """A tokenizer's answer, without the special tokens it puts around a text.

    `offsets` are the characters [start, end) that each token stands for; None if the tokenizer cannot tell.
    """

    ids: Sequence[int]
    offsets: Sequence[tuple[int, int]] | None


class Encoder(Protocol):
    """A tokenizer: a pure function of the text."""

    def __call__(self, text: str) -> Encoding: ...


@dataclass(frozen=True, slots=True)
class Splice:
    """How to get from old tokens to those of `text`: keep the first `keep`, then put these behind them."""

    text: str
    keep: int
    ids: array[int]
    starts: array[int]
    ends: array[int]


def _array() -> array[int]:
    return array("I")


@dataclass(slots=True)
class TokenisedText:
    """A text, its token ids and the characters [start, end) of each. Changed in place: copying would cost O(prompt).

    `starts` and `ends` are empty where the tokenizer gives no offsets.
    """

    text: str = ""
    ids: array[int] = field(default_factory=_array)
    starts: array[int] = field(default_factory=_array)
    ends: array[int] = field(default_factory=_array)

    def apply(self, splice: Splice) -> None:
        self.text = splice.text
        for mine, new in ((self.ids, splice.ids), (self.starts, splice.starts), (self.ends, splice.ends)):
            del mine[splice.keep :]
            mine.extend(new)


class Seam:
    """Tokenises a text given the tokens of an earlier one."""

    def __init__(self, encode: Encoder, *, lookahead: int = LOOKAHEAD) -> None:
        """`lookahead` must not be less than the length of the longest special token, in characters."""
        self._encode = encode
        self._lookahead = max(lookahead, LOOKAHEAD)

    def retokenise(self, old: TokenisedText, text: str) -> Splice:
        """The splice from `old` to the tokens of `text`."""
        return self.resume(old, text) or self.in_full(old, text)

    def resume(self, old: TokenisedText, text: str) -> Splice | None:
        """The same without tokenising the whole text; None where that cannot be done."""
        if not old.ids or len(old.ends) != len(old.ids):
            return None
        safe = bisect_right(old.ends, longest_common_prefix(old.text, text) - self._lookahead)
        for reach in REACHES:
            if safe <= reach:
                return None
            splice = self._resume_before(old, text, safe, reach)
            if splice is not None:
                return splice
        return None

    def in_full(self, old: TokenisedText, text: str) -> Splice:
        """The splice by tokenising the whole of `text`."""
        encoding = self._encode(text)
        ids = array("I", encoding.ids)
        keep = longest_common_prefix(old.ids, ids)
        if encoding.offsets is None:
            return Splice(text, keep, ids[keep:], array("I"), array("I"))
        starts, ends = _columns(encoding.offsets, 0)
        keep = min(keep, longest_common_prefix(old.starts, starts), longest_common_prefix(old.ends, ends))
        return Splice(text, keep, ids[keep:], starts[keep:], ends[keep:])

    def _resume_before(self, old: TokenisedText, text: str, safe: int, reach: int) -> Splice | None:
        begin = _last_boundary(old, text, safe - reach, max(0, safe - 2 * reach))
        if begin is None:
            return None
        end = _last_boundary(old, text, safe, begin + AGREEMENT)
        if end is None:
            return None
        origin = old.ends[begin - 1]
        encoding = self._encode(text[origin:])
        if encoding.offsets is None:
            return None
        starts, ends = _columns(encoding.offsets, origin)
        ids = array("I", encoding.ids)
        cut = bisect_right(ends, old.ends[end - 1])
        agree = max(AGREEMENT, (end - begin) // 2)
        if cut < agree or end < agree:
            return None
        for mine, new in ((old.ids, ids), (old.starts, starts), (old.ends, ends)):
            if mine[end - agree : end] != new[cut - agree : cut]:
                return None
        return Splice(text, end, ids[cut:], starts[cut:], ends[cut:])


def _columns(offsets: Sequence[tuple[int, int]], origin: int) -> tuple[array[int], array[int]]:
    return array("I", [start + origin for start, _ in offsets]), array("I", [end + origin for _, end in offsets])


def _last_boundary(old: TokenisedText, text: str, high: int, low: int) -> int | None:
    """The greatest n in (low, high] with token n - 1 ending a word: before white space, else before punctuation."""
    for is_boundary in (_ends_at_space, _ends_at_punctuation):
        for n in range(min(high, len(old.ids) - 1), max(low, 0), -1):
            at = old.ends[n - 1]
            if 0 < at < len(text) and old.starts[n] >= at and is_boundary(text[at - 1], text[at]):
                return n
    return None


def _ends_at_space(before: str, after: str) -> bool:
    return after.isspace() and not before.isspace()


def _ends_at_punctuation(before: str, after: str) -> bool:
    return before.isalnum() and unicodedata.category(after).startswith("P")
