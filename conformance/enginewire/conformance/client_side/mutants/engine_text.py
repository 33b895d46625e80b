"""Backends that are wrong about engines that send text."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import ReferenceBackend, Request
from enginewire.conformance.client_side.reference.text import ReferenceChoice


@client_mutant(
    "believes_any_text",
    kills=("CLI-38", "CLI-38/max-tokens", "CLI-38/whose-text"),
)
class BelievesAnyText(ReferenceChoice):
    def take(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        self.engine_evaluates = True
        return super().take(output)


@client_mutant("takes_the_stops_of_an_engine_that_evaluates_them", kills="CLI-39")
class TakesTheStops(ReferenceBackend):
    def engine_part(self, request: Request) -> pb.PreprocessedRequest:
        part = super().engine_part(request)
        part.stop_conditions.ClearField("stop")
        return part


@client_mutant("believes_no_text", kills="CLI-39/text")
class BelievesNoText(ReferenceChoice):
    def take(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        self.engine_evaluates = False
        return super().take(output)


@client_mutant("waits_for_text_that_never_comes", kills="CLI-39/without-text")
class WaitsForText(ReferenceChoice):
    def take(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        self.is_engine_text = self.engine_evaluates
        return super().take(output)


@client_mutant("what_an_engine_withheld_is_lost", kills="CLI-30/engine-text")
class WhatAnEngineWithheldIsLost(ReferenceBackend):
    def may_go_on(self, failure: Failed, request: Request) -> bool:
        for choice in request.choices:
            choice.is_engine_text = False
        may = super().may_go_on(failure, request)
        for choice in request.choices:
            choice.is_engine_text = self.engine_evaluates()
        return may
