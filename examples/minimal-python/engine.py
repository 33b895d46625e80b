"""The smallest engine of the contract: `python engine.py 127.0.0.1:50051`, or `unix:/run/engine.sock`."""

import asyncio
import re
import signal
import sys
import time

import grpc
from google.protobuf.any_pb2 import Any
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES
from enginewire.v1.status_codes import STATUS_CODES

SLOTS, QUEUE, WINDOW, VOCABULARY, EOS, STEP, SHUTDOWN = 8, 64, 4096, 1000, 2, 0.005, 30.0
NEVER, SERVING, NOT_SERVING = float("inf"), HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
LIFE, ID = str(time.time_ns()), r"[A-Za-z0-9._:-]{1,128}"
INFO = pb.GetEngineInfoResponse(engine_name="minimal-python", engine_version="1", instance_id=LIFE)
INFO.engine_lifetime_id, INFO.schema_digest = LIFE, pb.schema_digest()
INFO.contract_revision = INFO.minimum_client_revision = INFO.maximum_client_revision = pb.CONTRACT_REVISION
INFO.config.model, INFO.config.role = "hash", pb.ENGINE_ROLE_AGGREGATED
INFO.config.context_length, INFO.config.vocab_size = WINDOW, VOCABULARY
INFO.config.max_num_seqs, INFO.config.limits.max_num_queued_reqs = SLOTS, QUEUE
sampling = INFO.config.capabilities.default_sampling
sampling.temperature = sampling.top_p = sampling.repetition_penalty = 1.0


async def refuse(call, reason, field, text):
    """End a call with a status alone, whose details say the reason and the field."""
    number, detail = pb.ErrorReason.Value(f"ERROR_REASON_{reason}"), Any()
    can_retry = reason in ("DRAINING", "QUEUE_FULL")
    detail.Pack(pb.ErrorDetail(reason=number, field=field, retryable=can_retry))
    status = pb.Status(code=STATUS_CODES[number].value[0], message=text, details=[detail])
    trailers = (("grpc-status-details-bin", status.SerializeToString()),)
    await call.abort(STATUS_CODES[number], f"{field}: {text}" if field else text, trailers)


def faults(message, owner=""):
    """Hold each field that is set against its rule, which is an option of the field in the contract."""
    for field, value in message.ListFields():
        path, rule = owner + field.name, FIELD_RULES[owner + field.name]
        size = 0 if hasattr(value, "ListFields") else len(value) if hasattr(value, "__len__") else value
        most = VOCABULARY if rule.token_count else rule.bound
        if not rule.holds(size) or size > most:
            yield "INVALID_REQUEST", path, f"got {size}, allowed {rule.range} up to {most}"
        elif rule.capability and rule.asks(value):
            yield "UNSUPPORTED", path, f"{rule.capability} is not advertised"
        elif rule.token_ids and max(value) >= VOCABULARY:
            yield "INVALID_REQUEST", path, f"got {max(value)}, which is not in the vocabulary"
        elif hasattr(value, "ListFields"):
            yield from faults(value, f"{path}.")


class Engine(pb.EngineServiceServicer, pb.DiscoveryServiceServicer):
    """Requests that are live, in the order of their arrival: the first ones run, the others wait."""

    def __init__(self):
        self.live, self.health, self.signals = {}, health.aio.HealthServicer(), 0
        self.deadline, self.drain = NEVER, pb.DRAIN_STATE_DRAINING

    def refusals(self, generate):
        """Why the request is not accepted, if it is not: the first reason counts."""
        request, stop, name = generate.request, generate.request.stop_conditions, generate.request_id
        yield from faults(request)
        count, least, most = len(request.token_ids), max(stop.min_tokens, 1), stop.max_tokens or WINDOW
        rules = (
            (re.fullmatch(ID, name), "INVALID_REQUEST", "request_id", f"allowed {ID}"),
            (generate.HasField("request"), "INVALID_REQUEST", "request", "must be set"),
            (request.model in ("", "hash"), "MODEL_NOT_FOUND", "model", "no such model here"),
            (count, "INVALID_REQUEST", "token_ids", "must not be empty"),
            (least <= most, "INVALID_REQUEST", "stop_conditions.min_tokens", f"got {least}, allowed {most}"),
            (count + least <= WINDOW, "CONTEXT_EXCEEDED", "token_ids", f"got {count} of {WINDOW}"),
            (self.deadline == NEVER, "DRAINING", "", "the server is draining"),
            (name not in self.live, "DUPLICATE_ID", "request_id", "is live"),
            (len(self.live) < SLOTS + QUEUE, "QUEUE_FULL", "", "the queue is full"),
        )
        yield from (refusal for is_kept, *refusal in rules if not is_kept)

    async def Generate(self, generate, call):
        """A token per step while the request is among the first ones, until something ends it."""
        for refusal in self.refusals(generate):
            await refuse(call, *refusal)
        request, stop, name = generate.request, generate.request.stop_conditions, generate.request_id
        seed, size, done, why = hash(tuple(request.token_ids)), len(request.token_ids), 0, 0
        most = min(stop.max_tokens or (1 if request.is_probe else WINDOW), WINDOW - size)
        ends = dict.fromkeys([*stop.stop_token_ids, *stop.stop_token_ids_visible], pb.FINISH_REASON_STOP)
        eos = [] if stop.ignore_eos else [*stop.stop_token_ids_hidden, *(request.eos_token_ids or [EOS])]
        ends |= dict.fromkeys(eos, pb.FINISH_REASON_EOS)
        self.live[name] = generate
        try:
            await call.send_initial_metadata((("enginewire-lifetime-id", LIFE),))
            while not why:
                await asyncio.sleep(STEP)
                response = pb.GenerateResponse(request_id=name, engine_lifetime_id="" if done else LIFE)
                output, output.first_output_position = response.output, done
                if self.live.get(name) is not generate:
                    why = pb.FINISH_REASON_CANCELLED
                elif name in list(self.live)[:SLOTS]:
                    output.token_ids.append(3 + hash((seed, done)) % (VOCABULARY - 3))
                    done += 1
                    why = ends.get(output.token_ids[0], 0) if done >= stop.min_tokens else 0
                    if why == pb.FINISH_REASON_STOP:
                        output.stop_match.token_id = output.token_ids[0]
                    why = why or (pb.FINISH_REASON_LENGTH if done == most else 0)
                else:
                    continue
                if why:
                    self.free(generate)
                    output.finish_reason, usage = why, output.completion_usage
                    usage.prompt_tokens, usage.completion_tokens, usage.total_tokens = size, done, size + done
                await call.write(response)
        finally:  # also after a deadline and a lost connection
            self.free(generate)

    def free(self, generate):
        """Take the request out of the engine, unless that has happened."""
        if self.live.get(generate.request_id) is generate:
            del self.live[generate.request_id]

    async def Abort(self, request, call):
        if request.all == bool(request.request_ids):
            await refuse(call, "INVALID_REQUEST", "request_ids", "either these or all")
        response = pb.AbortResponse()
        for name in list(self.live) if request.all else request.request_ids:
            outcome = pb.ABORT_OUTCOME_ABORTED if self.live.pop(name, None) else pb.ABORT_OUTCOME_UNKNOWN
            response.results.add(request_id=name, outcome=outcome)
        return response

    async def Drain(self, request, call):
        seconds = request.deadline.ToNanoseconds() / 1e9 if request.HasField("deadline") else SHUTDOWN
        if seconds < 0:
            await refuse(call, "INVALID_REQUEST", "deadline", f"got {seconds} s, allowed 0 or more")
        self.deadline = min(self.deadline, time.monotonic() + seconds)
        state = pb.DRAIN_STATE_DRAINING
        while state == pb.DRAIN_STATE_DRAINING:
            await self.tend()
            state = self.drain
            await call.write(pb.DrainResponse(state=state, running=len(self.live)))
            await asyncio.sleep(STEP)

    async def tend(self):
        """End a drain that was asked for when nothing is live or its time is over; show it in health."""
        is_over = time.monotonic() >= self.deadline or (self.deadline < NEVER and not self.live)
        if is_over and self.drain == pb.DRAIN_STATE_DRAINING:
            self.drain = pb.DRAIN_STATE_TIMED_OUT if self.live else pb.DRAIN_STATE_DRAINED
            self.live.clear()
        for service in ("enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"):
            await self.health.set(service, SERVING if self.deadline == NEVER else NOT_SERVING)

    def on_signal(self):
        """The first one drains, the next one ends the drain."""
        self.signals += 1
        self.deadline = min(self.deadline, time.monotonic() + (SHUTDOWN if self.signals == 1 else 0))

    async def GetEngineInfo(self, request, call):
        return INFO

    async def GetLoad(self, request, call):
        state = pb.ENGINE_STATE_READY if self.deadline == NEVER else pb.ENGINE_STATE_DRAINING
        load, running = pb.Load(state=state, engine_lifetime_id=LIFE), min(len(self.live), SLOTS)
        load.running, load.waiting = running, len(self.live) - running
        return pb.GetLoadResponse(load=load)


async def main(address):
    """Serve until a signal has drained the engine."""
    engine, server = Engine(), grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    pb.add_EngineServiceServicer_to_server(engine, server)
    pb.add_DiscoveryServiceServicer_to_server(engine, server)
    health_pb2_grpc.add_HealthServicer_to_server(engine.health, server)
    server.add_insecure_port(address)
    await server.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, engine.on_signal)
    while not engine.signals or engine.drain == pb.DRAIN_STATE_DRAINING:
        await engine.tend()
        await asyncio.sleep(STEP)
    await server.stop(1.0)


asyncio.run(main(sys.argv[1]))
