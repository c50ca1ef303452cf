"""How the pictures look: one colour for each arm and policy in every picture, on a light and on a dark page.

The colours are Okabe and Ito's, which are told apart with any colour vision; arms, policies and ways of
preemption differ in lines and markers as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from stream2llm.workloads.comparison import Variant
from stream2llm.workloads.events import Arm

Shades = tuple[str, str]  # on light, on dark


@dataclass(frozen=True, slots=True)
class Theme:
    """The page's colours. `shade`: which of the `Shades` is for it."""

    name: str
    shade: int
    background: str
    ink: str
    faint: str

    @property
    def settings(self) -> dict[str, Any]:
        """For matplotlib's `rc_context`."""
        return {
            "figure.facecolor": self.background,
            "axes.facecolor": self.background,
            "savefig.facecolor": self.background,
            "text.color": self.ink,
            "axes.labelcolor": self.ink,
            "axes.edgecolor": self.ink,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": self.faint,
            "grid.linewidth": 0.6,
            "xtick.color": self.ink,
            "ytick.color": self.ink,
            "xtick.minor.size": 0,
            "ytick.minor.size": 0,
            "legend.frameon": False,
            "font.size": 9.5,
            "font.family": "DejaVu Sans",  # comes with matplotlib, so pictures are the same everywhere
            "lines.linewidth": 1.8,
            "figure.constrained_layout.use": True,
        }


LIGHT = Theme("light", 0, "#ffffff", "#222222", "#dddddd")
DARK = Theme("dark", 1, "#16191d", "#e6e6e6", "#3a3f45")

_WAIT: Shades = ("#6b6b6b", "#a8a8a8")
_WARM: Shades = ("#c98600", "#e69f00")
_INPUT: Shades = ("#a2386f", "#e28ab5")
_POLICIES: Mapping[str, Shades] = {
    "srpf": ("#d55e00", "#ff7a1a"),
    "default": ("#3b9fd6", "#56b4e9"),
    "fcfs": ("#007a59", "#1fc79a"),
    "lcas": ("#00528c", "#5d9fe0"),
    "mcps": ("#b85c94", "#cc79a7"),
}
_OTHERS: Sequence[Shades] = (("#7a6a00", "#f0e442"), ("#5b4a9e", "#a99be0"), ("#7f4a24", "#c79068"))

_ARM_LINES = {Arm.WAIT: (0, (5, 2)), Arm.WARM: (0, (1, 1.2)), Arm.INPUT: (0, (6, 1.5, 1, 1.5))}
_PREEMPTION_LINES = {"recompute": (0, (4, 1.5)), "swap": (0, (1.5, 1.2))}
_POLICY_MARKERS = {"srpf": "o", "default": "s", "fcfs": "^", "lcas": "v", "mcps": "D"}
_MARKERS = ("", "P", "X", "*", "<", ">")


def colour(variant: Variant, theme: Theme) -> str:
    """Of an arm, and of each policy of the streaming arm."""
    arms = {Arm.WAIT: _WAIT, Arm.WARM: _WARM, Arm.INPUT: _INPUT}
    shades = arms.get(variant.arm) or _POLICIES.get(variant.policy)
    if shades is None:
        shades = _OTHERS[crc32(variant.policy.encode()) % len(_OTHERS)] if variant.policy else _POLICIES["srpf"]
    return shades[theme.shade]


@dataclass
class Lines:
    """Styles for the lines of one picture; those that would look alike get markers of their own."""

    theme: Theme
    _drawn: dict[Variant, str] = field(default_factory=dict)  # to its marker

    def of(self, variant: Variant) -> dict[str, Any]:
        """Arguments for matplotlib's `plot`."""
        look = self._look(variant)
        if variant not in self._drawn:
            alike = sum(self._look(other) == look for other in self._drawn)
            first = _POLICY_MARKERS.get(variant.policy, "") if variant.arm is Arm.STREAM else ""
            self._drawn[variant] = _MARKERS[alike % len(_MARKERS)] if alike else first
        return {
            "color": look[0],
            "linestyle": look[1],
            "marker": self._drawn[variant],
            "markersize": 4,
            "markevery": 0.1,
            "label": str(variant),
        }

    def _look(self, variant: Variant) -> tuple[str, Any]:
        dashes = _ARM_LINES.get(variant.arm) or _PREEMPTION_LINES.get(variant.preemption) or "solid"
        return colour(variant, self.theme), dashes
