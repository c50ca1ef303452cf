"""Runs side by side: the same load under several arms and policies, and how they compare with waiting. Pure.

Runs of the same load (a `Cell`) may be compared. Those that differ in the seed alone are one `Row`: each is compared
with the waiting run of its own seed, since it sees the same queries at the same times; then the median is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stream2llm.workloads.events import Arm, Clock
from stream2llm.workloads.measured import Measured

Setting = tuple[str, str | float | bool]


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A load: what must be equal for two runs to be compared. `qps`: queries per second; `delay`: multiplier."""

    clock: Clock
    machine: str
    model: str
    workload: str
    delay: float
    qps: float
    time_scale: float = 1.0

    @classmethod
    def of(cls, measured: Measured) -> Cell:
        run = measured.run
        return cls(run.clock, run.machine, run.model, run.workload, run.delay, run.qps, run.time_scale)

    def __str__(self) -> str:
        scale = f", times x{self.time_scale:g}" if self.time_scale != 1 else ""
        return f"{self.workload}, {self.qps:g} queries/s, delays x{self.delay:g}{scale}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to serve the load. `settings`: those that tell two such runs of the same seed apart, mostly none."""

    arm: Arm
    policy: str = ""
    preemption: str = ""
    settings: tuple[Setting, ...] = ()

    def __str__(self) -> str:
        parts = [self.arm.value, *([self.policy, self.preemption] if self.arm is Arm.STREAM else [])]
        return " ".join([*filter(None, parts), *(f"{name}={value}" for name, value in self.settings)])


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several seeds: its median, least and greatest value."""

    median: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None without a value."""
        return cls(median(values), min(values), max(values), len(values)) if values else None


@dataclass(frozen=True, slots=True)
class Row:
    """The runs of one variant under one load, each with the waiting runs of its seed, if there are any."""

    cell: Cell
    variant: Variant
    runs: tuple[Measured, ...]
    waiting: tuple[tuple[Measured, ...], ...]

    def spread(self, figure: Callable[[Measured], float | None]) -> Spread | None:
        """Of a figure of each run; None if no run has it."""
        return Spread.of([value for run in self.runs if (value := figure(run)) is not None])

    def seconds(self, share: float) -> Spread | None:
        """Of the TTFT's quantile."""
        return self.spread(lambda run: run.quantile(share) if run.ttft else None)

    def times_sooner(self, share: float) -> Spread | None:
        """How many times sooner than waiting the first token is there, at this quantile of either."""
        return self.against_waiting(lambda run: run.quantile(share) if run.ttft else None, inverse=True)

    def against_waiting(self, figure: Callable[[Measured], float | None], inverse: bool = False) -> Spread | None:
        """The figure over that of waiting, or the `inverse`; None where there is nothing to compare with."""
        ratios = []
        for run, others in zip(self.runs, self.waiting, strict=True):
            ours = figure(run)
            theirs = [value for other in others if (value := figure(other)) is not None]
            if not ours or not theirs or not median(theirs):
                continue
            ratio = ours / median(theirs)
            ratios.append(1 / ratio if inverse else ratio)
        return Spread.of(ratios)


def compare(runs: Iterable[Measured]) -> tuple[Row, ...]:
    """The rows in order of their loads, waiting first."""
    cells: dict[Cell, list[Measured]] = defaultdict(list)
    for measured in runs:
        cells[Cell.of(measured)].append(measured)
    return tuple(row for cell in sorted(cells) for row in _rows(cell, cells[cell]))


def _rows(cell: Cell, runs: Sequence[Measured]) -> list[Row]:
    waiting = [measured for measured in runs if measured.run.arm is Arm.WAIT]
    told_apart = _told_apart(runs)
    variants: dict[Variant, list[Measured]] = defaultdict(list)
    for measured in runs:
        run = measured.run
        names = told_apart[run.arm, run.policy, run.preemption]
        settings = tuple((name, run.settings[name]) for name in names if name in run.settings)
        variants[Variant(run.arm, run.policy, run.preemption, settings)].append(measured)
    arms = list(Arm)
    ordered = sorted(variants, key=lambda v: (arms.index(v.arm), v.policy, v.preemption, str(v)))
    return [
        Row(
            cell,
            variant,
            tuple(of_it := sorted(variants[variant], key=lambda m: m.run.seed)),
            tuple(_baselines(measured, waiting) for measured in of_it),
        )
        for variant in ordered
    ]


def _told_apart(runs: Sequence[Measured]) -> Mapping[tuple[Arm, str, str], tuple[str, ...]]:
    """By arm, policy and preemption: the settings in which runs of the same seed differ."""
    groups: dict[tuple[Arm, str, str], dict[int, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for measured in runs:
        run = measured.run
        groups[run.arm, run.policy, run.preemption][run.seed].append(measured)
    return {
        key: tuple(sorted({name for alike in by_seed.values() for name in _differing(alike)}))
        for key, by_seed in groups.items()
    }


def _differing(runs: Sequence[Measured]) -> set[str]:
    names = {name for measured in runs for name in measured.run.settings}
    return {name for name in names if len({measured.run.settings.get(name) for measured in runs}) > 1}


def _baselines(measured: Measured, waiting: Sequence[Measured]) -> tuple[Measured, ...]:
    """The waiting runs of the same seed; where they have settings of their own, those that agree with this run's."""
    same_seed = [other for other in waiting if other.run.seed == measured.run.seed]
    contested = _differing(same_seed) & set(measured.run.settings)
    settings = measured.run.settings
    return tuple(o for o in same_seed if all(o.run.settings.get(name) == settings[name] for name in contested))
