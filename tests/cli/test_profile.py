"""What `stream2llm profile` tells; tests/vllm/test_profiling.py has it measure."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from costs_profiles import profile as known_profile
from stream2llm.cli import profile as command
from stream2llm.costs import CopyCosts, Curve
from stream2llm.costs.fitting import CopySample, PrefillSample, fit_copy, fit_prefill
from stream2llm.vllm.profiling import Measurement

NEW = (1, 16, 64, 256)
CONTEXTS = (0, 512)


def measurement(copy_seconds: float) -> Measurement:
    """Prefill of a millisecond a token and more behind a context; copies out that take the same time at any length."""
    prefill = [PrefillSample(new, context, new * (1e-3 + 1e-6 * context)) for new in NEW for context in CONTEXTS]
    copies = [CopySample(tokens, copy_seconds) for tokens in NEW]
    free = CopyCosts(Curve((1.0, 256.0), (0.0, 0.0)))
    fitted = replace(known_profile(), prefill=fit_prefill(prefill), copy_out=fit_copy(copies), copy_in=free)
    return Measurement(fitted, tuple(prefill), tuple(copies), tuple(copies))


def test_it_tells_from_where_on_swapping_pays() -> None:
    report = command._report(measurement(0.02))
    assert "swapping is cheaper than recomputing for victims of 64 tokens and more" in report
    never = command._report(measurement(0.5))
    assert "swapping is never cheaper than recomputing" in never


def test_it_tells_what_was_measured_and_how_well_the_curves_fit() -> None:
    report = command._report(measurement(0.02))
    for part in (
        "org/model on 1 x Test GPU; vllm 0.32.0, bfloat16, blocks of 16 tokens, 1,024 bytes of KV a token",
        "o prefill   x behind 512 tokens",
        "v copy out   ^ copy in",
        "prefill   fit off by 0.0% (median), 0.0% (worst of 8)",
        "copy out  fit off by 0.0% (median), 0.0% (worst of 4)",
    ):
        assert part in report
    assert "busy" not in report


def test_it_says_when_the_machine_cannot_have_been_idle() -> None:
    quiet = measurement(0.02)
    stalls = [PrefillSample(256, 0, 0.256 * factor) for factor in range(2, 50)]
    prefill = fit_prefill([*quiet.prefill, *stalls])
    assert prefill.error is not None
    assert prefill.error.median > command.DISTURBED
    report = command._report(replace(quiet, profile=replace(quiet.profile, prefill=prefill)))
    assert "note: a fit that is off by more than 10% is that of a busy machine; measure again" in report


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (("--data-parallel-size", "2"), 1, "stream2llm profile: --data-parallel-size"),
        (("--repeats", "0"), 2, "Invalid value for '--repeats'"),
        (("--no-such-option",), 2, "unrecognized arguments: --no-such-option"),
    ],
)
def test_what_cannot_be_done_is_said(
    model: str,
    options: tuple[str, ...],
    status: int,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())  # what the CPU engine wants is left behind in it
    app = typer.Typer(rich_markup_mode=None)
    command.register(app)
    result = CliRunner().invoke(app, [model, *options])
    assert result.exit_code == status
    assert complaint in result.output + capfd.readouterr().err
