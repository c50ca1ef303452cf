"""The paper's baseline: vLLM's own order, streams treated like any request."""

from __future__ import annotations

from stream2llm.policy.job import Job
from stream2llm.ranking import Rank


class Default:
    """By arrival, whether complete or not; who was admitted last gives up first, as in stock vLLM (LIFO).

    An idle stream comes last: vLLM knows none.

    Source: paper section 5, "default vLLM" with streaming; `vllm.v1.core.sched.scheduler.Scheduler.schedule`.
    """

    name = "default"
    description = "arrival order, streams like any request; last admitted is preempted first"
    complete_first = False
    preempts_running = True
    short_steps = False

    def service(self, job: Job) -> Rank:
        return (job.idle, job.arrival)

    def giving(self, job: Job) -> Rank:
        return (-job.started, -job.arrival)
