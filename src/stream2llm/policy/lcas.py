"""Last chunk arrival: who has waited longest since the newest piece of context came is first."""

from __future__ import annotations

from stream2llm.policy.job import Job
from stream2llm.ranking import Rank


class Lcas:
    """Complete before partial, each by the arrival of its last chunk, oldest first.

    Source: paper section 4.2 (last chunk arrival), in the direction in which the paper's artifact sorts.
    """

    name = "lcas"
    description = "complete before partial, each by arrival of its last chunk, oldest first"
    complete_first = True
    preempts_running = True
    short_steps = False

    def service(self, job: Job) -> Rank:
        return (not job.complete, job.last_chunk, job.arrival)

    def giving(self, job: Job) -> Rank:
        return (job.complete, -job.last_chunk, -job.arrival)
