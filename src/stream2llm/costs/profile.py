"""What prefill and KV-block copies cost on one machine, with one model and one engine version. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from stream2llm.costs.curves import Curve, FitError


class ProfileError(ValueError):
    """A profile cannot be used; the message says why and what helps."""


class ProfileMismatchError(ProfileError):
    """The profile is of other hardware, another model or another engine."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a profile is a profile of.

    `hardware`: accelerators or CPU with their number (`2 x NVIDIA H200`). `engine`: name and version. `dtype`: of the
    weights, with quantisation if any. `block_size`: tokens of a KV block.
    """

    hardware: str
    model: str
    engine: str
    dtype: str
    block_size: int


class SourceKind(StrEnum):
    """Whether a profile's figures were measured on its subject."""

    MEASURED = "measured"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the figures come from. `text` says how, for an estimate with formula and references. `created` is an
    ISO 8601 time, empty for what is computed anew each time."""

    kind: SourceKind
    text: str
    created: str = ""


@dataclass(frozen=True, slots=True)
class PrefillCosts:
    """Seconds to prefill n new tokens behind c context tokens whose KV is there: `base(n) + c * per_context_token(n)`.

    The form follows from attention: every new token looks at every context token, so for a given n the time is a
    straight line in c. Both curves never fall, hence neither does the sum in n or in c. `longest_context`: the most
    context tokens that were measured. `error` is None for an estimate.
    """

    base: Curve
    per_context_token: Curve
    longest_context: int
    error: FitError | None = None


@dataclass(frozen=True, slots=True)
class CopyCosts:
    """Seconds to copy the KV blocks of so many tokens, one way. `error` is None for an estimate."""

    seconds: Curve
    error: FitError | None = None


@dataclass(frozen=True, slots=True)
class CostProfile:
    """The cost model of one subject. Times in seconds.

    `step_tokens`: the engine's token budget of a step (`max_num_batched_tokens`); a longer prefill took several steps.
    `kv_bytes_per_token`: over all devices.
    """

    subject: Subject
    source: Source
    step_tokens: int
    kv_bytes_per_token: int
    prefill: PrefillCosts
    copy_out: CopyCosts
    copy_in: CopyCosts

    def prefill_seconds(self, new_tokens: float, context_tokens: float = 0) -> float:
        """To prefill `new_tokens` behind `context_tokens` whose KV is there; nothing for no tokens."""
        if new_tokens <= 0:
            return 0.0
        return self.prefill.base(new_tokens) + context_tokens * self.prefill.per_context_token(new_tokens)

    def step_seconds(self, chunks: Iterable[tuple[int, int]]) -> float:
        """An engine step that computes `chunks` of (new tokens, context tokens), one per request; a decode is (1, c).

        The chunks share one pass over the weights, and each attends to its own context. That their tokens do not
        attend to each other is neglected, which makes a step of many long chunks a little too dear.
        """
        contexts: dict[int, int] = {}
        total = 0
        for new, context in chunks:
            total += new
            contexts[new] = contexts.get(new, 0) + context
        return self.prefill_seconds(total) + sum(
            context * self.prefill.per_context_token(new) for new, context in contexts.items() if new > 0
        )

    def efficient_tokens(self, loss: float = 0.1) -> int:
        """The fewest tokens of a step that cost at most `loss` more each than those of a full step (`step_tokens`)."""
        most = (1 + loss) * self.prefill_seconds(self.step_tokens) / self.step_tokens
        counts = range(1, self.step_tokens + 1)
        return 1 + bisect_left(counts, True, key=lambda tokens: self.prefill_seconds(tokens) <= most * tokens)

    def copy_out_seconds(self, tokens: float) -> float:
        """To copy the KV blocks of `tokens` from the device to host memory."""
        return self.copy_out.seconds(tokens) if tokens > 0 else 0.0

    def copy_in_seconds(self, tokens: float) -> float:
        """To copy the KV blocks of `tokens` from host memory to the device."""
        return self.copy_in.seconds(tokens) if tokens > 0 else 0.0

    def covers_prefill(self, new_tokens: float, context_tokens: float = 0) -> bool:
        """Whether the figures for such a prefill lie between measured points; else they are extrapolated."""
        return self.prefill.base.covers(new_tokens) and context_tokens <= self.prefill.longest_context

    def covers_copy(self, tokens: float) -> bool:
        """Whether the figures for such copies lie between measured points; else they are extrapolated."""
        return self.copy_out.seconds.covers(tokens) and self.copy_in.seconds.covers(tokens)

    def require(self, subject: Subject, force: bool = False) -> CostProfile:
        """This profile, if it is one of `subject` or `force` is set; else raises `ProfileMismatchError`.

        An estimate holds for every engine version and block size.
        """
        ours, theirs = asdict(self.subject), asdict(subject)
        names = ("hardware", "model", "dtype") if self.source.kind is SourceKind.ESTIMATE else tuple(ours)
        differing = [
            f"{name} {ours[name]!r} instead of {theirs[name]!r}" for name in names if ours[name] != theirs[name]
        ]
        if differing and not force:
            raise ProfileMismatchError(
                f"the cost profile does not fit: it is of {', '.join(differing)}. Measure this one with "
                "`stream2llm profile`, or force the profile to be used"
            )
        return self
