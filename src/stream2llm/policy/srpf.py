"""Ours: shortest remaining prefill first, with ageing; memory is taken where it is needed last."""

from __future__ import annotations

from stream2llm.policy.job import Job
from stream2llm.ranking import FIRST, Rank

AGEING = 0.2
"""Seconds of prefill that a second of waiting is worth."""

PREEMPTIONS = 3
"""A request that was preempted so often is not preempted again while there is another."""


class Srpf:
    """Order: complete requests by remaining prefill time, less `AGEING` for each second waited; then open streams, the
    oldest first, silent ones last.

    Ageing bounds the wait: a request with w seconds to prefill is overtaken only by those that come within w / AGEING
    seconds after it. Streams are served by age because the oldest is expected to end first; age never changes, so two
    streams never take each other's memory in turn.

    Streams are computed in short steps: a complete request that comes meanwhile waits for the end of the step.

    Victims: silent streams, then the youngest streams, both of which need their blocks last; then waiting complete
    requests, the worst-ranked first, since they are furthest from their first token. A running complete request gives
    up only for the growth of other running ones, who came last first; one that was preempted `PREEMPTIONS` times only
    when nothing else is left. That a victim gives up just the tail that is needed keeps what is nearly finished.
    """

    name = "srpf"
    description = "shortest remaining prefill first with ageing, then streams by age; silent and young streams give up"
    complete_first = True
    preempts_running = False
    short_steps = True

    def service(self, job: Job) -> Rank:
        if not job.complete:
            return (1, job.silent, job.since)
        if job.decoding or job.preemptions >= PREEMPTIONS:
            return FIRST
        return (0, 0, _urgency(job))

    def giving(self, job: Job) -> Rank:
        if not job.complete:
            return (0, not job.silent, -job.since)
        return (1 + job.decoding, job.preemptions >= PREEMPTIONS, -_urgency(job))


def _urgency(job: Job) -> float:
    """The lower, the more urgent. Of two jobs, the order is that of `remaining_seconds - AGEING * waited`."""
    return job.remaining_seconds + AGEING * job.since
