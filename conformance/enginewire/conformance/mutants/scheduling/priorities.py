"""Servers whose queue has another order."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.call_metadata import fold
from enginewire.conformance.reference.generation.engine import BlockKey
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call


@mutant("first_come_first_served", kills="CON-08")
class FirstComeFirstServed(Reference):
    def enqueue(self, job: Job) -> None:
        self.waiting.append(job)


@mutant("higher_priorities_start_first", kills="CON-08")
class HigherPrioritiesStartFirst(Reference):
    def enqueue(self, job: Job) -> None:
        priority = job.request.routing.priority
        self.waiting.insert(sum(other.request.routing.priority >= priority for other in self.waiting), job)


@mutant("nothing_is_more_urgent_than_priority_0", kills="CON-08")
class NothingIsMoreUrgentThanPriorityZero(Reference):
    def urgency(self, job: Job) -> tuple[int, float]:
        priority, came_at = super().urgency(job)
        return max(priority, 0), came_at


@mutant("jumps_are_milliseconds", kills="CON-09")
class JumpsAreMilliseconds(Reference):
    def urgency(self, job: Job) -> tuple[int, float]:
        return job.request.routing.priority, job.came_at - job.request.routing.priority_jump / 1000


@mutant("jumps_are_ignored", kills="CON-09")
class JumpsAreIgnored(Reference):
    def urgency(self, job: Job) -> tuple[int, float]:
        return job.request.routing.priority, job.came_at


@mutant("jumps_are_for_priority_0", kills="CON-09")
class JumpsAreForPriorityZero(Reference):
    def urgency(self, job: Job) -> tuple[int, float]:
        priority, came_at = super().urgency(job)
        return priority, job.came_at if priority else came_at


@mutant("last_come_first_served", kills="CON-10")
class LastComeFirstServed(Reference):
    def urgency(self, job: Job) -> tuple[int, float]:
        routing = job.request.routing
        return routing.priority, -job.came_at - routing.priority_jump


@mutant("priority_keys_are_read_and_forgotten", kills="CON-08/metadata")
class PriorityKeysAreReadAndForgotten(Reference):
    def fold(self, request: pb.GenerateRequest, call: Call) -> None:
        has_field = request.request.routing.HasField("priority")
        super().fold(request, call)
        if not has_field:
            request.request.routing.ClearField("priority")


@mutant("priority_keys_of_submits_are_read_and_forgotten", kills="CON-08/metadata")
class PriorityKeysOfSubmitsAreReadAndForgotten(Reference):
    def submitted(self, submit: pb.Submit, call: Call) -> Job:
        read = pb.GenerateRequest()
        read.CopyFrom(submit.generate)
        fold(read, submit.metadata.items(), self.allows, self.number)
        submit.metadata.clear()
        return super().submitted(submit, call)


@mutant("ids_decide_within_a_minute", kills="CON-10")
class IdsDecideWithinAMinute(Reference):
    def enqueue(self, job: Job) -> None:
        mine = self._place(job)
        self.waiting.insert(sum(self._place(other) <= mine for other in self.waiting), job)

    def _place(self, job: Job) -> tuple[int, int, str]:
        priority, came_at = self.urgency(job)
        return priority, int(came_at / 60), job.request_id


class _Liked(Reference):
    """A place to be wrong: whoever is `liked` counts as having come half a minute sooner."""

    def liked(self, job: Job) -> bool:
        raise NotImplementedError

    def urgency(self, job: Job) -> tuple[int, float]:
        priority, came_at = super().urgency(job)
        return priority, came_at - 30 * self.liked(job)


@mutant("known_prompts_go_first", kills="CON-10")
class KnownPromptsGoFirst(_Liked):
    """Those that begin with a block that was cached, whether or not it still is."""

    def __init__(self) -> None:
        super().__init__()
        self._known = set[BlockKey]()

    def add_blocks(self, keys: list[BlockKey]) -> None:
        self._known.update(keys)
        super().add_blocks(keys)

    def liked(self, job: Job) -> bool:
        return not self._known.isdisjoint(self.block_keys(job))


@mutant("short_answers_go_first", kills="CON-10")
class ShortAnswersGoFirst(_Liked):
    def liked(self, job: Job) -> bool:
        return job.request.stop_conditions.max_tokens < 3


@mutant("who_was_resumed_goes_first", kills="CON-10")
class WhoWasResumedGoesFirst(_Liked):
    def liked(self, job: Job) -> bool:
        return job.request.HasField("resume")


@mutant("who_was_resumed_goes_last", kills="CON-10")
class WhoWasResumedGoesLast(_Liked):
    def liked(self, job: Job) -> bool:
        return not job.request.HasField("resume")


@mutant("callers_with_a_target_go_first", kills="CON-10")
class CallersWithATargetGoFirst(_Liked):
    def liked(self, job: Job) -> bool:
        return job.request.router.HasField("ttft_target")


@mutant("sub_agents_go_last", kills="CON-10")
class SubAgentsGoLast(_Liked):
    def liked(self, job: Job) -> bool:
        return not job.request.agent_context.parent_agent_id


@mutant("routing_keys_stay_together", kills="CON-10")
class RoutingKeysStayTogether(_Liked):
    def liked(self, job: Job) -> bool:
        key = job.request.routing.routing_key
        sooner = [other for other in self.waiting if other is not job and other.came_at < job.came_at]
        return bool(key) and any(other.request.routing.routing_key == key for other in sooner)
