// The RPCs: each reads its message, asks the engine, and answers.

import { Metadata, type sendUnaryData, type ServerUnaryCall, type ServerWritableStream } from "@grpc/grpc-js";
import type { Duration } from "../gen/google/protobuf/duration.js";
import { isDeepStrictEqual } from "node:util";
import * as discovery from "../gen/enginewire/v1/discovery_service.js";
import * as wire from "../gen/enginewire/v1/engine_service.js";
import { CompletionUsage, LLMEngineOutput } from "../gen/enginewire/v1/output.js";
import { CONTEXT_LENGTH, EOS, MAX_RUNNING, MAX_WAITING, outputsOf, VOCAB_SIZE } from "./engine.js";
import type { Engine, Output, Sequence } from "./engine.js";
import { Failure } from "./failure.js";
import { check, MODEL, OLDEST_REVISION, REVISION } from "./rules.js";

const SCHEMA_DIGEST = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401";
export const SHUTDOWN_TIMEOUT_MS = 30_000;
const MOST_IDS = 16_384; // Of one abort.

type GenerateCall = ServerWritableStream<wire.GenerateRequest, wire.GenerateResponse>;

// Of what is left out, gRPC says that it is not implemented.
type Discovery = Omit<discovery.DiscoveryServiceServer, "getTokenizer">;
type Service = Omit<wire.EngineServiceServer, "generateMultiplexed">;

export function discoveryService(engine: Engine): Discovery {
  return {
    getEngineInfo: unary(() => info(engine.lifetimeId)),
    getLoad: unary(() => ({ load: engine.load() })),
    watchLoad: streaming((call) => {
      const interval = call.request.min_interval_ms ?? 100;
      if (interval < 10)
        throw new Failure("INVALID_REQUEST", "min_interval_ms", `got ${interval}, allowed from 10`);
      watch(call, interval, () => ({ load: engine.load() }));
    }),
  };
}

export function engineService(engine: Engine): Service {
  return {
    generate: streaming((call) => generate(engine, call)),
    abort: unary(({ request_ids, all }) => {
      if (all === request_ids.length > 0)
        throw new Failure("INVALID_REQUEST", "request_ids", "exactly one of ids and all is needed");
      if (request_ids.length > MOST_IDS)
        throw new Failure("INVALID_REQUEST", "request_ids", `too many for one answer, allowed ${MOST_IDS}`);
      return { results: engine.abort(all ? undefined : request_ids) };
    }),
    drain: streaming((call) => {
      const { deadline, admission_grace } = call.request;
      const limit = deadline ? milliseconds("deadline", deadline) : SHUTDOWN_TIMEOUT_MS;
      engine.drain(limit, admission_grace ? milliseconds("admission_grace", admission_grace) : 0);
      const isFinal = ({ state }: wire.DrainResponse) => state > wire.DrainState.DRAIN_STATE_DRAINING;
      watch(call, 10, () => engine.progress(), isFinal);
    }),
    cleanup: unary(async ({ abort_in_flight }) => ({ already_clean: await engine.cleanup(abort_in_flight) })),
  };
}

function info(lifetimeId: string): discovery.GetEngineInfoResponse {
  return discovery.GetEngineInfoResponse.fromPartial({
    config: {
      model: MODEL,
      context_length: CONTEXT_LENGTH,
      max_num_seqs: BigInt(MAX_RUNNING),
      vocab_size: VOCAB_SIZE,
      eos_token_ids: [EOS],
      role: discovery.EngineRole.ENGINE_ROLE_AGGREGATED,
      capabilities: {
        cleanup: true,
        watch_load: true,
        default_sampling: { temperature: 1, top_p: 1, repetition_penalty: 1 },
      },
      limits: { max_request_bytes: BigInt(4 << 20), max_num_queued_reqs: MAX_WAITING, min_keepalive_interval_ms: 1000 },
    },
    engine_name: "enginewire-example-typescript",
    engine_version: "1",
    instance_id: lifetimeId,
    engine_lifetime_id: lifetimeId,
    contract_revision: REVISION,
    minimum_client_revision: OLDEST_REVISION,
    maximum_client_revision: REVISION,
    schema_digest: SCHEMA_DIGEST,
  });
}

function generate(engine: Engine, call: GenerateCall): void {
  const request = check(call.request);
  const send = sender(call, engine.lifetimeId, request.token_ids.length);
  const sequence = { id: call.request.request_id, request, outputs: outputsOf(request), send };
  engine.admit(sequence);
  // Also the deadline and a lost connection.
  call.on("cancelled", () => engine.remove(sequence));
  const accepted = new Metadata();
  accepted.set("enginewire-lifetime-id", engine.lifetimeId);
  call.sendMetadata(accepted);
}

/** Writes outputs; while the reader lags, tokens are gathered into one. */
function sender(call: GenerateCall, lifetimeId: string, prompt_tokens: number): Sequence["send"] {
  let [token_ids, sent, isWritable]: [number[], number, boolean] = [[], 0, true];
  let last: Output = {};
  const flush = () => {
    if (!isWritable || (token_ids.length === 0 && !last.end)) return;
    const output = LLMEngineOutput.fromPartial({ token_ids, first_output_position: sent });
    const engine_lifetime_id = sent === 0 ? lifetimeId : "";
    sent += token_ids.length;
    token_ids = [];
    if (last.end) {
      output.finish_reason = last.end;
      if (last.stopId !== undefined) output.stop_match = { token_id: last.stopId };
      const usage = { prompt_tokens, completion_tokens: sent, total_tokens: prompt_tokens + sent };
      output.completion_usage = CompletionUsage.fromPartial(usage);
    }
    const { request_id } = call.request;
    isWritable = call.write({ output, request_id, engine_lifetime_id, engine_event: undefined });
    if (last.end) call.end();
  };
  call.on("drain", () => {
    isWritable = true;
    flush();
  });
  return (output) => {
    last = output;
    if (output.token !== undefined) token_ids.push(output.token);
    flush();
  };
}

function milliseconds(field: string, { seconds, nanos }: Duration): number {
  const value = Number(seconds) * 1000 + nanos / 1e6;
  if (value < 0) throw new Failure("INVALID_REQUEST", field, "must not be negative");
  return value;
}

/** Sends `current` at once and after every change, until it `isFinal` or the caller goes. */
function watch<Request, Response>(
  call: ServerWritableStream<Request, Response>,
  intervalMs: number,
  current: () => Response,
  isFinal: (message: Response) => boolean = () => false,
): void {
  let last: Response | undefined;
  const send = () => {
    const message = current();
    if (!isDeepStrictEqual(message, last)) call.write(message);
    last = message;
    if (!isFinal(message)) return;
    clearInterval(timer);
    call.end();
  };
  const timer = setInterval(send, intervalMs);
  call.on("cancelled", () => clearInterval(timer));
  send();
}

function unary<Request, Response>(answer: (request: Request) => Response | Promise<Response>) {
  return async ({ request }: ServerUnaryCall<Request, Response>, reply: sendUnaryData<Response>) => {
    try {
      reply(null, await answer(request));
    } catch (failure) {
      reply(statusOf(failure));
    }
  };
}

function streaming<Request, Response>(answer: (call: ServerWritableStream<Request, Response>) => void) {
  return (call: ServerWritableStream<Request, Response>) => {
    try {
      answer(call);
    } catch (failure) {
      call.emit("error", statusOf(failure));
    }
  };
}

function statusOf(failure: unknown) {
  if (failure instanceof Failure) return failure.toServiceError();
  throw failure;
}
