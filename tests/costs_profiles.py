"""Profiles for tests, with figures that are easy to reckon with."""

from __future__ import annotations

from stream2llm.costs import CopyCosts, CostProfile, Curve, FitError, PrefillCosts, Source, SourceKind, Subject

SUBJECT = Subject("1 x Test GPU", "org/model", "vllm 0.32.0", "bfloat16", 16)
FIT = FitError(0.01, 0.05, 12)


def line(at_1: float, at_1000: float) -> Curve:
    return Curve((1.0, 1000.0), (at_1, at_1000))


def profile(kind: SourceKind = SourceKind.MEASURED) -> CostProfile:
    """1 ms a new token, 1 us a pair of new and context token, 0.1 ms a token out and 0.2 ms in."""
    return CostProfile(
        subject=SUBJECT,
        source=Source(kind, "for a test", "2026-01-01T00:00:00+00:00"),
        step_tokens=2048,
        kv_bytes_per_token=1024,
        prefill=PrefillCosts(line(1e-3, 1.0), line(1e-6, 1e-3), longest_context=4000, error=FIT),
        copy_out=CopyCosts(line(1e-4, 0.1), FIT),
        copy_in=CopyCosts(line(2e-4, 0.2), FIT),
    )
