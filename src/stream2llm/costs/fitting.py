"""From measurements to a profile's curves: which lengths to measure, and the fit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from stream2llm.costs.curves import FitError, fit_monotone
from stream2llm.costs.profile import CopyCosts, PrefillCosts

_Key = TypeVar("_Key", int, tuple[int, int])


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One run: prefill of `new_tokens` behind `context_tokens` from the prefix cache."""

    new_tokens: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CopySample:
    """One run: the KV blocks of `tokens` copied one way."""

    tokens: int
    seconds: float


def lengths(smallest: int, largest: int, per_doubling: int = 1) -> tuple[int, ...]:
    """Lengths to measure: from `smallest` to `largest`, both included, `per_doubling` of them per factor of two."""
    if not 0 < smallest <= largest:
        raise ValueError(f"lengths from {smallest} to {largest} cannot be measured")
    found, step = [], 0
    while (length := round(smallest * 2 ** (step / per_doubling))) < largest:
        found.append(length)
        step += 1
    return tuple(dict.fromkeys([*found, largest]))


def context_lengths(longest: int, block_size: int) -> tuple[int, ...]:
    """Context lengths to measure: quarters of `longest`, in whole blocks, without 0."""
    quarters = (longest * share // 4 // block_size * block_size for share in (1, 2, 3))
    return tuple(dict.fromkeys(length for length in quarters if length > 0))


def fit_copy(samples: Sequence[CopySample]) -> CopyCosts:
    """The copy curve nearest to the medians of the runs of each length; the error is over all runs.

    Raises `ValueError` for fewer than two lengths.
    """
    medians = _medians((sample.tokens, sample.seconds) for sample in samples)
    curve = fit_monotone(list(medians), list(medians.values()))
    error = FitError.of([curve(sample.tokens) for sample in samples], [sample.seconds for sample in samples])
    return CopyCosts(curve, error)


def fit_prefill(samples: Sequence[PrefillSample]) -> PrefillCosts:
    """The prefill curves nearest to the medians of the runs of each kind; the error is over all runs.

    For each number of new tokens the line over the context (weighted least squares, for the least relative error; its
    slope not below 0), then isotonic regression of the intercepts and of the slopes over the new tokens. Raises
    `ValueError` unless two numbers of new tokens at least were measured behind two context lengths.
    """
    medians = _medians(((sample.new_tokens, sample.context_tokens), sample.seconds) for sample in samples)
    by_new: dict[int, list[PrefillSample]] = {}
    for (new, context), seconds in medians.items():
        by_new.setdefault(new, []).append(PrefillSample(new, context, seconds))
    lines = {new: _line(group) for new, group in by_new.items()}
    sloped = {new: line for new, line in lines.items() if line.slope_weight > 0}
    if len(sloped) < 2:
        raise ValueError("prefill must be measured behind two context lengths, for two numbers of new tokens at least")
    base = fit_monotone(list(lines), [line.intercept for line in lines.values()])
    per_context_token = fit_monotone(
        list(sloped), [line.slope for line in sloped.values()], [line.slope_weight for line in sloped.values()]
    )
    fitted = [
        base(sample.new_tokens) + sample.context_tokens * per_context_token(sample.new_tokens) for sample in samples
    ]
    return PrefillCosts(
        base,
        per_context_token,
        max(sample.context_tokens for sample in samples),
        FitError.of(fitted, [sample.seconds for sample in samples]),
    )


def _medians(runs: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    """The median of the runs of each key, keys in order."""
    values: dict[_Key, list[float]] = {}
    for key, seconds in runs:
        values.setdefault(key, []).append(seconds)
    return {key: median(values[key]) for key in sorted(values)}


@dataclass(frozen=True, slots=True)
class _Line:
    intercept: float
    slope: float
    slope_weight: float  # 0 where one context length cannot tell a slope


def _line(samples: Sequence[PrefillSample]) -> _Line:
    weights = [sample.seconds**-2 for sample in samples]
    total = sum(weights)
    context = sum(weight * sample.context_tokens for weight, sample in zip(weights, samples, strict=True)) / total
    seconds = sum(weight * sample.seconds for weight, sample in zip(weights, samples, strict=True)) / total
    spread = moment = 0.0
    for weight, sample in zip(weights, samples, strict=True):
        off = sample.context_tokens - context
        spread += weight * off * off
        moment += weight * off * (sample.seconds - seconds)
    if spread <= 0:
        if context > 0:
            raise ValueError(f"prefill of {samples[0].new_tokens} new tokens was not measured without context")
        return _Line(seconds, 0.0, 0.0)
    slope = max(0.0, moment / spread)
    return _Line(max(0.0, seconds - slope * context), slope, spread)
