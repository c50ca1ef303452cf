"""The plug-in's own options: `--additional-config '{"stream2llm": {...}}'`; `stream2llm serve` has a flag for most."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream2llm.costs import Mode
from stream2llm.pacing import ITL_FACTOR
from stream2llm.policy import DEFAULT_POLICY

if TYPE_CHECKING:
    from vllm.config import VllmConfig

KEY = "stream2llm"


@dataclass(frozen=True, slots=True)
class Options:
    """`policy`: a name of `stream2llm.policy.names()`. `preemption`: a `costs.Mode`. `profile`: a cost profile's path.

    `itl_factor`: the inter-token latency that open streams may cause, over that without them; None: no protection.
    `correction`: whether the cost profile's prefill times are corrected from observed steps.
    """

    policy: str = DEFAULT_POLICY
    preemption: Mode = Mode.COST
    profile: Path | None = None
    itl_factor: float | None = ITL_FACTOR
    correction: bool = True

    @classmethod
    def of(cls, config: VllmConfig) -> Options:
        """As the server was started. Raises `ValueError` for an option that is not understood."""
        additional = config.additional_config
        return cls.parsed(additional.get(KEY, {}) if isinstance(additional, dict) else {})

    @classmethod
    def parsed(cls, given: Any) -> Options:
        """Raises `ValueError` that names the option and what it can be."""
        known = [field.name for field in fields(cls)]
        if not isinstance(given, dict):
            raise ValueError(f"additional config {KEY}: an object with any of {', '.join(known)}, not {given!r}")
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ValueError(
                f"additional config {KEY}: unknown option {', '.join(unknown)}; there are {', '.join(known)}"
            )
        values = dict(given)
        if "preemption" in values:
            values["preemption"] = _mode(values["preemption"])
        if values.get("profile") is not None:
            values["profile"] = Path(values["profile"])
        factor = values.get("itl_factor", ITL_FACTOR)
        if factor is not None and not (isinstance(factor, int | float) and factor > 1):
            raise ValueError(f"itl_factor {factor!r}: a number above 1, or null for no protection")
        if not isinstance(values.get("correction", True), bool):
            raise ValueError(f"correction {values['correction']!r}: true or false")
        return cls(**values)


def _mode(name: Any) -> Mode:
    try:
        return Mode(name)
    except ValueError:
        raise ValueError(f"preemption {name!r}: choose one of {', '.join(Mode)}") from None
