"""Copy bandwidth of the host tier's connector over a plain memory copy of the same bytes.

Makes a KV cache as vLLM places it and copies blocks that lie scattered over it to slots that lie scattered over the
host pool, and back, with the connector's own copier. The plain copy is of as many bytes in one piece, between the same
two memories (on CUDA between the device and pinned memory). Every repeat times both, in turn.

    python -m benchmarks.swap_bandwidth --json

The default shape is SmolLM2-135M's in float32 on the CPU, and that of Llama-3.1-8B in bfloat16 on CUDA.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    compute_layout_strides,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from stream2llm.vllm.offload.copier import Copier, make_copier
from stream2llm.vllm.offload.copies import BlockCopy
from stream2llm.vllm.offload.regions import block_regions


@dataclass(frozen=True)
class Shape:
    layers: int
    kv_heads: int
    head_size: int
    block_size: int
    dtype: str

    @property
    def spec(self) -> FullAttentionSpec:
        return FullAttentionSpec(
            block_size=self.block_size,
            num_kv_heads=self.kv_heads,
            head_size=self.head_size,
            dtype=getattr(torch, self.dtype),
        )

    @property
    def block_bytes(self) -> int:
        return int(self.layers * self.spec.page_size_bytes)


SMOLLM2_135M = Shape(layers=30, kv_heads=3, head_size=64, block_size=32, dtype="float32")
LLAMA_3_1_8B = Shape(layers=32, kv_heads=8, head_size=128, block_size=16, dtype="bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layout", choices=[layout.name for layout in KVCacheLayout], default="LBHNC")
    parser.add_argument("--blocks", type=int, default=64, help="copied at a time")
    parser.add_argument("--repeats", type=int, default=15)
    for name, kind in Shape.__annotations__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=str if kind == "str" else int)
    arguments = parser.parse_args()
    default = LLAMA_3_1_8B if arguments.device.startswith("cuda") else SMOLLM2_135M
    shape = Shape(**{name: getattr(arguments, name) or value for name, value in asdict(default).items()})
    result = measure(shape, torch.device(arguments.device), arguments.layout, arguments.blocks, arguments.repeats)
    if arguments.json:
        print(json.dumps(result))
        return
    for way in ("out", "back"):
        figures = result[way]
        print(
            f"{way:>4}: {figures['gb_per_s']} GB/s, plain copy {figures['plain_gb_per_s']} GB/s, "
            f"ratio {figures['ratio']} ({figures['ratio_min']} to {figures['ratio_max']})"
        )


def measure(shape: Shape, device: torch.device, layout: str, blocks: int, repeats: int) -> dict[str, object]:
    """Both ways: GB/s of the connector and of the plain copy (medians), and their ratio (median, least, greatest)."""
    copier = make_copier(block_regions(*kv_cache(shape, device, layout, 2 * blocks)), 2 * blocks)
    total = blocks * shape.block_bytes
    dice = random.Random(0)
    sides = memory_of(device, total), memory_of(torch.device("cpu"), total, pinned=device.type == "cuda")
    result: dict[str, object] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "layout": layout,
        "blocks": blocks,
        "block_bytes": shape.block_bytes,
        "repeats": repeats,
        **asdict(shape),
    }
    for way, (source, target) in {"out": sides, "back": sides[::-1]}.items():
        plain, ours = [], []
        for repeat in range(repeats + 1):
            copies = [
                BlockCopy(block, slot)
                for block, slot in zip(
                    dice.sample(range(2 * blocks), blocks), dice.sample(range(2 * blocks), blocks), strict=True
                )
            ]
            plain_s = timed(lambda: copy(source, target), device)  # noqa: B023
            ours_s = timed(lambda: one_way(copier, way, copies), device)  # noqa: B023
            if repeat:  # the first warms up
                plain.append(plain_s)
                ours.append(ours_s)
        ratios = [theirs / own for theirs, own in zip(plain, ours, strict=True)]
        result[way] = {
            "gb_per_s": round(total / statistics.median(ours) / 1e9, 2),
            "plain_gb_per_s": round(total / statistics.median(plain) / 1e9, 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
        }
    copier.close()
    return result


def kv_cache(
    shape: Shape, device: torch.device, layout: str, blocks: int
) -> tuple[KVCacheConfig, dict[str, torch.Tensor]]:
    """A KV cache placed and allocated by vLLM's own functions."""
    names = [f"layers.{number}" for number in range(shape.layers)]
    order = KVCacheLayout[layout]
    packed = shape.block_bytes if order.is_block_outermost else None
    layer_stride, block_stride, *_ = compute_layout_strides(
        shape.spec, blocks, shape.layers, order, fixed_strides=(None, packed, None, None, None)
    )
    placement = KVCacheTensor(blocks * shape.block_bytes, names, layer_stride, block_stride)
    config = KVCacheConfig(blocks, [placement], [KVCacheGroupSpec(names, shape.spec)])
    return config, allocate_kv_cache(config, device, order)


def memory_of(device: torch.device, size: int, pinned: bool = False) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int8, device=device, pin_memory=pinned).fill_(1)


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    if source.device == target.device:
        np.copyto(target.numpy(), source.numpy())  # memcpy
    else:
        target.copy_(source, non_blocking=True)


def one_way(copier: Copier, way: str, copies: list[BlockCopy]) -> None:
    copier.copy_out(copies if way == "out" else [])
    copier.copy_back(copies if way == "back" else [])


def timed(work: Callable[[], None], device: torch.device) -> float:
    """Seconds until the work is done on the device too."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
