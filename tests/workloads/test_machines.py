"""The machines that a simulation can pretend to have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costs_profiles import profile
from stream2llm.costs.builtin import PAPER_MACHINES
from stream2llm.workloads.machines import BLOCK, STEP_TOKENS, Machine, paper_machine

KV_BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2  # Llama-3.1-8B in bf16: keys and values, layers, KV heads, dimension


def test_the_paper_machines_have_the_sizes_that_memory_and_model_give() -> None:
    """0.8 of 141 or 80 GB on each of two devices, less 3 GB each, less 8.03e9 weights of 2 bytes."""
    h200, h100 = (paper_machine(name, 2048) for name in ("2xh200", "2xh100"))
    assert h200.kv_tokens == int((2 * (0.8 * 141e9 - 3e9) - 16.06e9) / KV_BYTES_PER_TOKEN)
    assert h100.kv_tokens == int((2 * (0.8 * 80e9 - 3e9) - 16.06e9) / KV_BYTES_PER_TOKEN)
    assert h200.host_tokens == h100.host_tokens == int(512e9 / KV_BYTES_PER_TOKEN)
    assert h200.longest == 131_072


@pytest.mark.parametrize("name", PAPER_MACHINES)
@pytest.mark.parametrize("step_tokens", STEP_TOKENS.values())
def test_the_budget_of_a_step_is_the_profile_s_too(name: str, step_tokens: int) -> None:
    machine = paper_machine(name, step_tokens)
    assert machine.step_tokens == machine.profile.step_tokens == step_tokens


def test_another_machine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'4xb200'; there are: 2xh200, 2xh100"):
        paper_machine("4xb200", 2048)


@pytest.mark.parametrize(
    ("kv_tokens", "longest", "prompt"),
    [(10_000, 4096, 4095), (4096, 10_000, 4096 - BLOCK - 1), (4095, 10_000, 4080 - BLOCK - 1)],
)
def test_the_longest_prompt_leaves_a_token_and_the_null_block(kv_tokens: int, longest: int, prompt: int) -> None:
    assert replace(Machine(profile(), kv_tokens), longest=longest).longest_prompt == prompt
