"""A bare engine: `python engine.py unix:/tmp/raw.sock`, behind `enginewire engine --upstream …`."""

import asyncio
import os
import sys

import grpc

from enginewire import v1 as pb

CONFIG = pb.EngineConfig(model="bare", vocab_size=1000, context_length=4096, max_num_seqs=8)
LIFE = os.urandom(8).hex()


def next_token(tokens):
    return hash((len(tokens), *tokens[-4:])) % CONFIG.vocab_size  # here a real engine asks its model


def add_token(output, token, count, request):
    output.token_ids.append(token)
    stop = request.stop_conditions
    hidden = () if stop.ignore_eos else (*request.eos_token_ids, *stop.stop_token_ids_hidden)
    if count >= stop.min_tokens and token in hidden:
        output.finish_reason = pb.FINISH_REASON_EOS
    elif count >= stop.min_tokens and token in (*stop.stop_token_ids, *stop.stop_token_ids_visible):
        output.finish_reason, output.stop_match.token_id = pb.FINISH_REASON_STOP, token
    elif count == stop.max_tokens:
        output.finish_reason = pb.FINISH_REASON_LENGTH


class BareEngine(pb.EngineServiceServicer, pb.DiscoveryServiceServicer):
    def __init__(self):
        self.live = set()

    async def GetEngineInfo(self, request, call):
        return pb.GetEngineInfoResponse(config=CONFIG, engine_lifetime_id=LIFE)

    async def GetLoad(self, request, call):
        return pb.GetLoadResponse(load=pb.Load(running=len(self.live), state=pb.ENGINE_STATE_READY))

    async def Abort(self, request, call):
        response = pb.AbortResponse()
        for name in request.request_ids:
            outcome = pb.ABORT_OUTCOME_ABORTED if name in self.live else pb.ABORT_OUTCOME_UNKNOWN
            response.results.add(request_id=name, outcome=outcome)
            self.live.discard(name)
        return response

    async def Generate(self, generate, call):
        name, tokens = generate.request_id, [*generate.request.token_ids]
        self.live.add(name)
        try:
            for position in range(generate.request.stop_conditions.max_tokens):
                await asyncio.sleep(0.002)
                output = pb.LLMEngineOutput(first_output_position=position)
                if name in self.live:
                    tokens.append(next_token(tokens))
                    add_token(output, tokens[-1], position + 1, generate.request)
                else:
                    output.finish_reason = pb.FINISH_REASON_CANCELLED
                life = "" if position else LIFE
                yield pb.GenerateResponse(output=output, request_id=name, engine_lifetime_id=life)
                if output.finish_reason:
                    return
        finally:
            self.live.discard(name)


async def main(address):
    server, engine = grpc.aio.server(), BareEngine()
    pb.add_EngineServiceServicer_to_server(engine, server)
    pb.add_DiscoveryServiceServicer_to_server(engine, server)
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
