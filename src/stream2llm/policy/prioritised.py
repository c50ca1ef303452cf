"""vLLM's `--scheduling-policy priority`: the requests' priority first, the policy among equals."""

from __future__ import annotations

from stream2llm.policy.job import Job, Policy
from stream2llm.ranking import Rank


class Prioritised:
    """Orders by `Job.priority`, the lower the sooner, then by another policy."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.description = f"{policy.description}; by priority first"
        self.complete_first = policy.complete_first
        self.preempts_running = policy.preempts_running
        self.short_steps = policy.short_steps
        self._policy = policy

    def service(self, job: Job) -> Rank:
        return (job.priority, *self._policy.service(job))

    def giving(self, job: Job) -> Rank:
        return (-job.priority, *self._policy.giving(job))
