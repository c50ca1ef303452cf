"""A tiny model for tests: random weights, the embedded model's tokenizer and chat template."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stream2llm.embedded import prepared_folder, write_tokenizer

LAYERS = 3
MAX_TOKENS = 32768


def tiny_model(directory: Path | None = None, layers: int = LAYERS) -> str:
    """The folder of a seeded random-weight Llama: `layers` layers, hidden size 128, float32, 32768 positions.

    Made once and kept in `directory` (default: the user's cache).
    """
    write = partial(_write, layers=layers)
    return str(prepared_folder(f"tiny-llama-{layers}x128-1", write, "Preparing the tiny test model (once)", directory))


def _write(folder: Path, layers: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = write_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        # Wide enough that replacing any 32 of 1000 tokens changes the greedy answer (a wrong KV block shows),
        # narrow enough that rounding (6e-6) stays far below the gap of the best two logits (median 0.3).
        initializer_range=0.15,
        dtype="float32",
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
