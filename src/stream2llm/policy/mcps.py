"""Most chunks processed: who has got furthest goes on."""

from __future__ import annotations

from stream2llm.policy.job import Job
from stream2llm.ranking import Rank


class Mcps:
    """Most computed tokens first, ties by arrival, complete or not; who has nothing to compute is last.

    Source: paper section 4.2 (most chunks processed).
    """

    name = "mcps"
    description = "most computed tokens first, ties by arrival; nothing to compute goes last"
    complete_first = False
    preempts_running = True
    short_steps = False

    def service(self, job: Job) -> Rank:
        return (job.idle, -job.computed_tokens, job.arrival)

    def giving(self, job: Job) -> Rank:
        return (not job.idle, job.computed_tokens, -job.arrival)
