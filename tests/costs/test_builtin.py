"""Estimates follow from public figures by their formula, say so, and agree with what has been published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costs_profiles import SUBJECT
from stream2llm.costs import Mode, Preemption, ProfileMismatchError, SourceKind, Victim, decide, paper_profile
from stream2llm.costs.builtin import (
    A100,
    CPU_CORE,
    H100,
    H200,
    LLAMA_3_1_8B,
    PAPER_MACHINES,
    UNKNOWN_ACCELERATOR,
    ModelShape,
    Utilisation,
    accelerator_named,
    estimate,
)


def test_the_shape_of_llama_3_1_8b_gives_its_published_figures() -> None:
    """8.03e9 parameters with two embeddings of 128256 x 4096; 128 KiB of KV a token."""
    embeddings = 2 * 128_256 * 4096
    assert LLAMA_3_1_8B.matmul_parameters + embeddings == pytest.approx(8.03e9, rel=0.001)
    assert LLAMA_3_1_8B.kv_bytes_per_token == 128 * 1024


def test_prefill_on_the_papers_machine_takes_what_the_paper_measured() -> None:
    """Median TTFT without streaming at 0.5 queries/s: 0.116 s, for a median query of 5,749 tokens."""
    assert paper_profile("2xh200").prefill_seconds(5749) == pytest.approx(0.116, rel=0.1)


def test_prefill_on_cpu_cores_takes_what_was_seen() -> None:
    """SmolLM2-135M in float32 prefills about 250 tokens/s on two AVX2 cores."""
    smollm = ModelShape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, weight_bytes=4, kv_bytes=4)
    assert estimate(SUBJECT, CPU_CORE, 2, smollm, 2048).prefill_seconds(1000) == pytest.approx(4.0, rel=0.2)


def test_a_long_step_takes_operations_over_reached_speed() -> None:
    profile = estimate(SUBJECT, H200, 2, LLAMA_3_1_8B, 8192)
    dense, attention = 2 * LLAMA_3_1_8B.matmul_parameters * 8192, 4 * 32 * 4096 * 8192 * 8192 / 2
    assert profile.prefill_seconds(8192) == pytest.approx(
        0.004 + dense / (2 * 989e12 * 0.48) + attention / (2 * 989e12 * 0.53), rel=0.01
    )


def test_a_short_step_takes_reading_the_weights() -> None:
    read = 2 * LLAMA_3_1_8B.matmul_parameters / (2 * 4.8e12 * 0.8)
    assert paper_profile("2xh200").prefill_seconds(1) == pytest.approx(0.004 + read, rel=0.01)


def test_context_costs_its_attention_and_at_least_reading_its_kv() -> None:
    profile = paper_profile("2xh200")
    more = profile.prefill_seconds(2048, 50_000) - profile.prefill_seconds(2048)
    assert more == pytest.approx(4 * 32 * 4096 * 2048 * 50_000 / (2 * 989e12 * 0.53), rel=0.01)
    decode = profile.prefill_seconds(1, 50_000) - profile.prefill_seconds(1)
    assert decode == pytest.approx(50_000 * 128 * 1024 / (2 * 4.8e12 * 0.8), rel=0.01)


def test_copies_take_bytes_over_the_host_link() -> None:
    seconds = paper_profile("2xh100").copy_out_seconds(10_000)
    assert seconds == pytest.approx(0.0005 + 10_000 * 128 * 1024 / (2 * 64e9 * 0.75), rel=0.01)


def test_faster_hardware_is_faster() -> None:
    slow, fast = (estimate(SUBJECT, A100, devices, LLAMA_3_1_8B, 2048) for devices in (1, 4))
    for tokens in (1, 100, 10_000):
        assert fast.prefill_seconds(tokens, 1000) < slow.prefill_seconds(tokens, 1000)
        assert fast.copy_in_seconds(tokens) < slow.copy_in_seconds(tokens)
    h200, h100 = paper_profile("2xh200"), paper_profile("2xh100")
    assert h200.prefill_seconds(1) < h100.prefill_seconds(1)  # memory-bound
    assert h200.prefill_seconds(100_000) == pytest.approx(h100.prefill_seconds(100_000))  # bound by operations


def test_smaller_steps_pay_the_step_overhead_more_often() -> None:
    more = paper_profile("2xh200", 2048).prefill_seconds(65_536) - paper_profile("2xh200", 8192).prefill_seconds(65_536)
    assert more == pytest.approx((32 - 8) * Utilisation().step_overhead)


@pytest.mark.parametrize("machine", sorted(PAPER_MACHINES))
def test_estimates_say_that_they_are_estimates_and_where_from(machine: str) -> None:
    source = paper_profile(machine).source
    assert source.kind is SourceKind.ESTIMATE
    assert source.text.startswith("Estimate, not measured. NVIDIA H")
    for part in ("data sheet", "48% of peak", "75% of the host link", "4 ms per step"):
        assert part in source.text
    assert paper_profile(machine).prefill.error is None


def test_an_estimate_is_refused_on_another_machine() -> None:
    with pytest.raises(ProfileMismatchError, match="hardware '2 x NVIDIA H200' instead of '1 x Test GPU'"):
        paper_profile("2xh200").require(replace(SUBJECT, model=LLAMA_3_1_8B.name))


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no built-in profile '8xb200'; there are: 2xh200, 2xh100"):
        paper_profile("8xb200")


def test_accelerators_are_known_by_the_name_they_report() -> None:
    assert accelerator_named("NVIDIA H100 80GB HBM3") is H100
    assert accelerator_named("nvidia h200") is H200
    assert accelerator_named("Some NPU") is UNKNOWN_ACCELERATOR


@pytest.mark.parametrize("accelerator", [H200, CPU_CORE, UNKNOWN_ACCELERATOR])
def test_long_victims_are_swapped_by_every_estimate(accelerator: object) -> None:
    profile = estimate(SUBJECT, accelerator, 2, LLAMA_3_1_8B, 2048)
    assert decide(Victim(20_000), profile, Mode.COST).preemption is Preemption.SWAP
