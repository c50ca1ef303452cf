"""The machine that a simulation pretends to have. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stream2llm.costs import CostProfile, paper_profile
from stream2llm.costs.builtin import LLAMA_3_1_8B, PAPER_MACHINES

BLOCK = 16
"""Tokens of a KV block: vLLM's default on a GPU."""

_GPU_BYTES = {"2xh200": 141e9, "2xh100": 80e9}  # of one device, from its data sheet
_UTILISATION = 0.8  # of the memory, as the paper has it
_WEIGHTS = 8.03e9 * LLAMA_3_1_8B.weight_bytes
_ACTIVATIONS = 3e9  # of one device; assumed
_HOST_BYTES = 512e9  # for the host tier; the paper does not say


@dataclass(frozen=True)
class Machine:
    """What serves: a cost profile, and sizes in tokens.

    `kv_tokens`: of the KV cache. `host_tokens`: of the host tier, 0 for none. `step_tokens`: the budget of a step
    (`max_num_batched_tokens`). `sequences`: `max_num_seqs`. `longest`: `max_model_len`.
    """

    profile: CostProfile
    kv_tokens: int
    host_tokens: int = 0
    step_tokens: int = 2048
    sequences: int = 1024
    longest: int = 131_072

    @property
    def longest_prompt(self) -> int:
        """Tokens; one less than the model's length and the KV cache, of which one block is vLLM's null block."""
        return min(self.longest, (self.kv_tokens // BLOCK - 1) * BLOCK) - 1


def paper_machine(name: str, step_tokens: int) -> Machine:
    """One of the paper's two, with Llama-3.1-8B in bf16. Raises `ValueError` for another name."""
    profile = paper_profile(name, step_tokens)
    _, devices = PAPER_MACHINES[name]
    kv_bytes = devices * (_UTILISATION * _GPU_BYTES[name] - _ACTIVATIONS) - _WEIGHTS
    return Machine(
        profile,
        int(kv_bytes / profile.kv_bytes_per_token),
        int(_HOST_BYTES / profile.kv_bytes_per_token),
        step_tokens,
    )


STEP_TOKENS = {"crawler": 2048, "anns": 8192}
"""The paper's budget of a step, by workload."""
