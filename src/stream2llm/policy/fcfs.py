"""First come, first served, complete requests before open streams."""

from __future__ import annotations

from stream2llm.policy.job import Job
from stream2llm.ranking import Rank


class Fcfs:
    """Complete before partial, each by arrival (of a final request: of its stream). Source: paper section 4.2."""

    name = "fcfs"
    description = "complete before partial, each by arrival"
    complete_first = True
    preempts_running = True
    short_steps = False

    def service(self, job: Job) -> Rank:
        return (not job.complete, job.arrival)

    def giving(self, job: Job) -> Rank:
        return (job.complete, -job.arrival)
