"""Scheduling policies by name, those of other packages included (entry-point group `stream2llm.policies`). Pure."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from stream2llm.policy.default import Default
from stream2llm.policy.fcfs import Fcfs
from stream2llm.policy.job import Job, Policy
from stream2llm.policy.lcas import Lcas
from stream2llm.policy.mcps import Mcps
from stream2llm.policy.srpf import Srpf

__all__ = ["DEFAULT_POLICY", "GROUP", "Job", "Policy", "PolicyError", "names", "policy"]

GROUP = "stream2llm.policies"
DEFAULT_POLICY = Srpf.name
_BUILT_IN: dict[str, Callable[[], Policy]] = {kind.name: kind for kind in (Srpf, Default, Fcfs, Lcas, Mcps)}


class PolicyError(ValueError):
    """There is no such policy, or it cannot be loaded; the message says which there are."""


def names() -> list[str]:
    """The policies that can be chosen: the built-in ones, then those of other packages."""
    others = sorted({entry.name for entry in entry_points(group=GROUP)} - set(_BUILT_IN))
    return [*_BUILT_IN, *others]


def policy(name: str) -> Policy:
    """The policy of that name. A built-in name cannot be taken by another package. Raises `PolicyError`."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    for entry in entry_points(group=GROUP, name=name):
        try:
            made: Policy = entry.load()()
        except Exception as error:
            raise PolicyError(f"policy {name!r} ({entry.value}) cannot be loaded: {error!r}") from error
        missing = [
            attribute
            for attribute in ("complete_first", "preempts_running", "short_steps", "service", "giving")
            if not hasattr(made, attribute)
        ]
        if missing:
            raise PolicyError(
                f"policy {name!r} ({entry.value}) lacks {', '.join(missing)}: see stream2llm.policy.Policy"
            )
        return made
    raise PolicyError(f"no policy {name!r}: choose one of {', '.join(names())}")
