from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.oracle.draw import Offer
from enginewire.conformance.oracle.mistakes import NOT_OFFERED, mistaken
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import CAPABILITIES, without
from enginewire.conformance.session.context import Greedy
from enginewire.conformance.session.requests import change, good_request

RUNS = [Greedy(list(range(3, 20)), list(range(30, 54)))]
CONFIG = Reference().config


def refused(request: pb.GenerateRequest) -> bool:
    """What the reference thinks of it."""
    try:
        Reference().validate(request)
    except Refusal:
        return True
    return False


def test_each_mistake_makes_a_request_that_is_refused_of_one_that_is_not() -> None:
    found = mistaken(1, RUNS, Offer.of(CONFIG), CONFIG)
    assert len(found) >= 3 * 15
    for each in found:
        request = change(good_request("r-1", [5]), **each.case.changes(RUNS[0], salt="salt"))
        assert not refused(request)
        assert refused(change(request, **each.changes))


def test_mistakes_are_the_same_for_a_seed_and_meet_many_options() -> None:
    first, again, other = (mistaken(seed, RUNS, Offer.of(CONFIG), CONFIG) for seed in (1, 1, 2))
    assert [each.case for each in first] == [each.case for each in again] != [each.case for each in other]
    met = {name for each in first for name in (*each.case.options, *each.changes)}
    assert {"n", "resumed", "multiplexed", "stream_interval", "logprobs", "seed", "temperature"} <= met


def test_what_is_not_offered_is_asked_for_as_a_mistake_alone() -> None:
    class Bare(Reference):
        settings = without(*CAPABILITIES)

    config = Bare().config
    for each in mistaken(1, RUNS, Offer.of(config), config):
        assert (
            each.changes.keys()
            <= {
                *("request_id", "model", "token_ids", "eos_token_ids", "temperature", "top_p", "top_k"),
                *("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden", "stream_interval"),
                *("max_tokens", "min_tokens", "resume"),
            }
            or each.reasons == NOT_OFFERED
        )
