"""LoRA adapters with random weights, in the files that PEFT writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RANK = 8
_MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")


def random_adapter(model: str, folder: Path, number: int) -> Any:
    """Write adapter `number` (from 1) for the Llama in folder `model`; its `LoRARequest`."""
    from vllm.lora.request import LoRARequest

    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": [*_leaves()], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    _write_weights(json.loads(Path(model, "config.json").read_text()), folder, number)
    return LoRARequest(f"adapter-{number}", number, str(folder))


def _leaves() -> list[str]:
    return [module.rpartition(".")[2] for module in _MODULES]


def _write_weights(model: dict[str, Any], folder: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    keys = hidden // heads * model["num_key_value_heads"]
    shapes = {
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, keys),
        "v_proj": (hidden, keys),
        "o_proj": (hidden, hidden),
    }
    shapes["down_proj"] = (model["intermediate_size"], hidden)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        # As wide as the model's own weights once multiplied, so that the adapter changes every answer.
        return torch.randn(*shape, generator=generator) * (model["initializer_range"] / RANK**0.5) ** 0.5

    weights = {}
    for layer in range(model["num_hidden_layers"]):
        for module in _MODULES:
            inputs, outputs = shapes[module.rpartition(".")[2]]
            name = f"base_model.model.model.layers.{layer}.{module}"
            weights[f"{name}.lora_A.weight"] = normal(RANK, inputs)
            weights[f"{name}.lora_B.weight"] = normal(outputs, RANK)
    save_file(weights, folder / "adapter_model.safetensors")
