"""Estimated profiles from public figures: for the paper's machines, and for whoever has measured none. Pure.

No figure here is measured by us; a measured profile is always better.
"""

from __future__ import annotations

from dataclasses import dataclass

from stream2llm.costs.curves import Curve
from stream2llm.costs.fitting import lengths
from stream2llm.costs.profile import CopyCosts, CostProfile, PrefillCosts, Source, SourceKind, Subject

LONGEST = 131_072  # tokens up to which estimates give points


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device by its data sheet.

    `flops`: peak dense bf16 operations per second. `memory_bandwidth`, and `host_bandwidth` to host memory one way: in
    bytes per second. `source`: where the figures are published.
    """

    name: str
    flops: float
    memory_bandwidth: float
    host_bandwidth: float
    source: str


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The share of the peak figures that is assumed to be reached, and fixed costs in seconds.

    `compute` and `attention` (of the operations of matrix products and of attention) and `step_overhead` are those with
    which simulated waiting comes nearest to the paper's published TTFT without streaming on 2 x H200, in all its rates
    and both workloads (docs/simulate.md). `host_link` 0.75 is what pinned copies over PCIe reach.
    """

    compute: float = 0.48
    attention: float = 0.53
    memory: float = 0.8
    host_link: float = 0.75
    step_overhead: float = 0.004
    copy_latency: float = 0.0005


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer with a gated feed-forward network, as far as costs depend on it.

    `intermediate`: width of the feed-forward network that a token passes (for a mixture of experts: of all experts
    together that it is routed to). `weight_bytes`, `kv_bytes`: per element.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    weight_bytes: float = 2
    kv_bytes: float = 2

    @property
    def matmul_parameters(self) -> int:
        """Weights that every prefilled token is multiplied with; embedding and output head are not among them."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def attention_flops(self) -> int:
        """Operations for one token to attend to one other: scores and weighted values, over all layers."""
        return 4 * self.layers * self.heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        return round(2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes)


_H100_SHEET = "NVIDIA H100 data sheet: SXM, 1,979 Tflop/s bf16 with sparsity, hence 989 dense; 3.35 TB/s; PCIe 5.0 x16"
_PCIE5, _PCIE4 = 64e9, 32e9  # bytes per second one way, x16, as the PCIe specifications give it

H200 = Accelerator(
    "NVIDIA H200",
    989e12,
    4.8e12,
    _PCIE5,
    "NVIDIA H200 data sheet: SXM, 1,979 Tflop/s bf16 with sparsity, hence 989 dense; 4.8 TB/s; PCIe 5.0 x16",
)
H100 = Accelerator("NVIDIA H100 80GB HBM3", 989e12, 3.35e12, _PCIE5, _H100_SHEET)
GH200 = Accelerator(
    "NVIDIA GH200 480GB", 989e12, 4.0e12, 450e9, "NVIDIA GH200 data sheet: 4 TB/s HBM3; NVLink-C2C, 900 GB/s both ways"
)
A100 = Accelerator(
    "NVIDIA A100-SXM4-80GB",
    312e12,
    2.039e12,
    _PCIE4,
    "NVIDIA A100 data sheet: SXM 80 GB, 312 Tflop/s bf16; PCIe 4.0 x16",
)
L40S = Accelerator(
    "NVIDIA L40S", 362e12, 0.864e12, _PCIE4, "NVIDIA L40S data sheet: 362 Tflop/s bf16 dense; 864 GB/s; PCIe 4.0 x16"
)
L4 = Accelerator(
    "NVIDIA L4", 121e12, 0.3e12, _PCIE4, "NVIDIA L4 data sheet: 121 Tflop/s bf16 dense; 300 GB/s; PCIe 4.0"
)
ACCELERATORS = (H200, H100, GH200, A100, L40S, L4)
UNKNOWN_ACCELERATOR = Accelerator(
    "unknown accelerator", A100.flops, A100.memory_bandwidth, A100.host_bandwidth, f"assumed to be like {A100.name}"
)
CPU_CORE = Accelerator(
    "CPU core",
    64e9,
    10e9,
    4e9,
    "assumed: a core with AVX2, 32 float32 operations a cycle at 2 GHz; 10 GB/s of memory bandwidth, copying at 4 GB/s",
)

LLAMA_3_1_8B = ModelShape("meta-llama/Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336)

PAPER_MACHINES = {"2xh200": (H200, 2), "2xh100": (H100, 2)}
"""The machines of the paper's evaluation, all with Llama-3.1-8B in bf16."""


def paper_profile(machine: str, step_tokens: int = 2048) -> CostProfile:
    """The estimate for one of `PAPER_MACHINES` with Llama-3.1-8B in bf16 and blocks of 16 tokens.

    The paper takes `step_tokens` 2048 for crawled context and 8192 for vector search. Raises `ValueError` for another
    name.
    """
    if machine not in PAPER_MACHINES:
        raise ValueError(f"no built-in profile {machine!r}; there are: {', '.join(PAPER_MACHINES)}")
    accelerator, devices = PAPER_MACHINES[machine]
    subject = Subject(f"{devices} x {accelerator.name}", LLAMA_3_1_8B.name, "any", "bfloat16", 16)
    return estimate(subject, accelerator, devices, LLAMA_3_1_8B, step_tokens)


def accelerator_named(name: str) -> Accelerator:
    """The accelerator that calls itself so, or one assumed in its stead."""
    return next((known for known in ACCELERATORS if known.name.lower() == name.lower()), UNKNOWN_ACCELERATOR)


def estimate(
    subject: Subject,
    accelerator: Accelerator,
    devices: int,
    model: ModelShape,
    step_tokens: int,
    reached: Utilisation | None = None,
) -> CostProfile:
    """A profile of `model` on `devices` accelerators with tensor parallelism, from figures alone.

    A step of m tokens takes `step_overhead` + max(2 P m / F, W / B), for P weights of W bytes, F operations and B bytes
    per second; its tokens attend to those before them: A m per token of context, at G operations per second, where the
    KV of the context must be read at B bytes per second at least. A copy takes `copy_latency` + bytes / host bandwidth.
    """
    reached = reached or Utilisation()
    flops = devices * accelerator.flops * reached.compute
    attention_flops = devices * accelerator.flops * reached.attention
    bandwidth = devices * accelerator.memory_bandwidth * reached.memory
    link = devices * accelerator.host_bandwidth * reached.host_link
    weight_read = model.matmul_parameters * model.weight_bytes / bandwidth

    def base(tokens: int) -> float:
        dense = sum(
            reached.step_overhead + max(2 * model.matmul_parameters * step / flops, weight_read)
            for step in _steps(tokens, step_tokens)
        )
        return dense + model.attention_flops * tokens * tokens / 2 / attention_flops

    def per_context_token(tokens: int) -> float:
        return sum(
            max(model.attention_flops * step / attention_flops, model.kv_bytes_per_token / bandwidth)
            for step in _steps(tokens, step_tokens)
        )

    def copy(tokens: int) -> float:
        return reached.copy_latency + tokens * model.kv_bytes_per_token / link

    grid = lengths(1, LONGEST, per_doubling=2)
    xs = tuple(map(float, grid))
    copies = CopyCosts(Curve((1.0, float(LONGEST)), (copy(1), copy(LONGEST))))
    return CostProfile(
        subject=subject,
        source=Source(SourceKind.ESTIMATE, _source(accelerator, devices, model, reached)),
        step_tokens=step_tokens,
        kv_bytes_per_token=model.kv_bytes_per_token,
        prefill=PrefillCosts(
            Curve(xs, tuple(map(base, grid))), Curve(xs, tuple(map(per_context_token, grid))), longest_context=LONGEST
        ),
        copy_out=copies,
        copy_in=copies,
    )


def _steps(tokens: int, step_tokens: int) -> list[int]:
    whole, rest = divmod(tokens, step_tokens)
    return [step_tokens] * whole + ([rest] if rest else [])


def _source(accelerator: Accelerator, devices: int, model: ModelShape, reached: Utilisation) -> str:
    return (
        f"Estimate, not measured. {accelerator.source}. Prefill: {devices} devices at {reached.compute:.0%} of peak "
        f"for 2 x {model.matmul_parameters / 1e9:.2f}e9 operations per token, and at {reached.attention:.0%} for "
        f"{model.attention_flops} per token and token attended to; weights and KV read at {reached.memory:.0%} of "
        f"memory bandwidth; {reached.step_overhead * 1e3:g} ms per step. Copies: {model.kv_bytes_per_token} bytes per "
        f"token at {reached.host_link:.0%} of the host link, {reached.copy_latency * 1e3:g} ms per copy."
    )
