// The RPCs: thin, each reads its message, asks the lifecycle, and answers.

import type { sendUnaryData, ServerUnaryCall, ServerWritableStream } from "@grpc/grpc-js";
import { Metadata } from "@grpc/grpc-js";
import type { Duration } from "../gen/google/protobuf/duration.js";
import * as discovery from "../gen/enginewire/v1/discovery_service.js";
import * as wire from "../gen/enginewire/v1/engine_service.js";
import { FinishReason, LLMEngineOutput } from "../gen/enginewire/v1/output.js";
import {
  CONTEXT_LENGTH,
  EOS,
  MAX_RUNNING,
  MAX_WAITING,
  VOCAB_SIZE,
  type End,
  type Sequence,
} from "./engine.js";
import { Failure } from "./failure.js";
import type { Lifecycle } from "./lifecycle.js";
import { check, MODEL, REVISION } from "./rules.js";

const SCHEMA_DIGEST = "04fcb1bfd9466351c639afd6f855c64105acd53d2f7f1c694ba4c32dce1a17fd";
const SHUTDOWN_TIMEOUT_MS = 30_000;

type Unary<Request, Response> = (
  call: ServerUnaryCall<Request, Response>,
  reply: sendUnaryData<Response>,
) => void;
type Streaming<Request, Response> = (call: ServerWritableStream<Request, Response>) => void;

/** A Failure becomes the status of the call. */
function unary<Request, Response>(
  answer: (request: Request) => Response | Promise<Response>,
): Unary<Request, Response> {
  return async (call, reply) => {
    try {
      reply(null, await answer(call.request));
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      reply(failure.toServiceError());
    }
  };
}

function streaming<Request, Response>(answer: Streaming<Request, Response>): Streaming<Request, Response> {
  return (call) => {
    try {
      answer(call);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      call.emit("error", failure.toServiceError());
    }
  };
}

export function discoveryService(life: Lifecycle): discovery.DiscoveryServiceServer {
  return {
    getEngineInfo: unary(() => info(life)),
    getLoad: unary(() => ({ load: life.load() })),
    watchLoad: streaming((call) => {
      const interval = call.request.min_interval_ms ?? 100;
      if (interval < 10)
        throw new Failure(
          "INVALID_REQUEST",
          "min_interval_ms",
          `too short, got ${interval}, allowed from 10`,
        );
      watch(
        call,
        interval,
        () => ({ load: life.load() }),
        discovery.WatchLoadResponse,
        () => false,
      );
    }),
    getTokenizer: streaming(() => {
      throw new Failure("MODEL_NOT_FOUND", "", "this engine offers no tokenizer");
    }),
  };
}

export function engineService(life: Lifecycle): wire.EngineServiceServer {
  return {
    generate: streaming((call) => generate(life, call)),
    generateMultiplexed: (call) => {
      call.emit("error", new Failure("UNSUPPORTED", "", "needs the capability multiplexed").toServiceError());
    },
    abort: unary(({ request_ids, all }) => {
      if (all === request_ids.length > 0)
        throw new Failure("INVALID_REQUEST", "request_ids", "exactly one of ids and all is needed");
      const ids = all ? life.liveIds() : request_ids;
      return { results: ids.map((id) => ({ request_id: id, outcome: life.abort(id) })) };
    }),
    drain: streaming((call) => {
      const { deadline, admission_grace } = call.request;
      life.drain(
        milliseconds("deadline", deadline, SHUTDOWN_TIMEOUT_MS),
        milliseconds("admission_grace", admission_grace, 0),
      );
      const isFinal = ({ state }: wire.DrainResponse) => state > wire.DrainState.DRAIN_STATE_DRAINING;
      watch(call, 10, () => life.progress(), wire.DrainResponse, isFinal);
    }),
    cleanup: unary(async ({ abort_in_flight }) => ({ already_clean: await life.cleanup(abort_in_flight) })),
  };
}

function info(life: Lifecycle): discovery.GetEngineInfoResponse {
  return discovery.GetEngineInfoResponse.fromPartial({
    config: {
      model: MODEL,
      context_length: CONTEXT_LENGTH,
      max_num_seqs: BigInt(MAX_RUNNING),
      vocab_size: VOCAB_SIZE,
      eos_token_ids: [EOS],
      role: discovery.EngineRole.ENGINE_ROLE_AGGREGATED,
      capabilities: { default_sampling: { temperature: 1, top_p: 1, repetition_penalty: 1 } },
      limits: { max_request_bytes: BigInt(4 << 20), max_num_queued_reqs: MAX_WAITING },
    },
    engine_name: "enginewire-example-typescript",
    engine_version: "1",
    instance_id: life.lifetimeId,
    engine_lifetime_id: life.lifetimeId,
    contract_revision: REVISION,
    minimum_client_revision: REVISION,
    maximum_client_revision: REVISION,
    schema_digest: SCHEMA_DIGEST,
  });
}

function generate(
  life: Lifecycle,
  call: ServerWritableStream<wire.GenerateRequest, wire.GenerateResponse>,
): void {
  life.checkOpen();
  applyMetadata(call.request, call.metadata);
  const request = check(call.request);
  const stop = request.stop_conditions;
  const room = CONTEXT_LENGTH - request.token_ids.length;
  const eos = request.eos_token_ids.length > 0 ? request.eos_token_ids : [EOS];
  const id = call.request.request_id;
  const answer = new Answer(call, life.lifetimeId, request.token_ids.length);
  const sequence: Sequence = {
    prompt: request.token_ids,
    maxTokens: Math.min(stop?.max_tokens ?? (request.is_probe ? 1 : room), room),
    minTokens: stop?.min_tokens ?? 0,
    visibleStops: new Set([...(stop?.stop_token_ids ?? []), ...(stop?.stop_token_ids_visible ?? [])]),
    hiddenStops: new Set(stop?.ignore_eos ? [] : [...eos, ...(stop?.stop_token_ids_hidden ?? [])]),
    generated: 0,
    output(token, end) {
      if (end) life.forget(id, sequence);
      answer.add(token, end);
    },
  };
  life.admit(id, sequence);
  // Also the deadline and a lost connection.
  call.on("cancelled", () => {
    life.engine.remove(sequence);
    life.forget(id, sequence);
  });
  const accepted = new Metadata();
  accepted.set("enginewire-lifetime-id", life.lifetimeId);
  call.sendMetadata(accepted);
}

/** Writes outputs; while the reader lags, tokens are gathered into one. */
class Answer {
  private tokens: number[] = [];
  private sent = 0;
  private end: End | undefined;
  private isWritable = true;

  constructor(
    private readonly call: ServerWritableStream<wire.GenerateRequest, wire.GenerateResponse>,
    private readonly lifetimeId: string,
    private readonly promptTokens: number,
  ) {
    call.on("drain", () => {
      this.isWritable = true;
      this.flush();
    });
  }

  add(token: number | undefined, end: End | undefined): void {
    if (token !== undefined) this.tokens.push(token);
    this.end ??= end;
    this.flush();
  }

  private flush(): void {
    if (!this.isWritable || (this.tokens.length === 0 && !this.end)) return;
    const output = LLMEngineOutput.fromPartial({ token_ids: this.tokens, first_output_position: this.sent });
    const isFirst = this.sent === 0;
    this.sent += this.tokens.length;
    this.tokens = [];
    if (this.end) this.finish(output, this.end);
    const { request_id } = this.call.request;
    this.isWritable = this.call.write({
      output,
      request_id,
      engine_lifetime_id: isFirst ? this.lifetimeId : "",
    });
    if (this.end) this.call.end();
  }

  private finish(output: LLMEngineOutput, end: End): void {
    output.finish_reason = FinishReason[`FINISH_REASON_${end.why}`];
    if (end.token !== undefined) output.stop_match = { token_id: end.token };
    const [prompt_tokens, completion_tokens] = [this.promptTokens, this.sent];
    const total_tokens = prompt_tokens + completion_tokens;
    output.completion_usage = {
      prompt_tokens,
      completion_tokens,
      total_tokens,
      prompt_tokens_details: undefined,
      completion_tokens_details: undefined,
    };
  }
}

/** Reserved metadata keys mean what their fields mean; the two may not differ. */
function applyMetadata({ request }: wire.GenerateRequest, metadata: Metadata): void {
  if (!request) return;
  const routing: { [field: string]: unknown } = (request.routing ?? {}) as {};
  for (const field of ["dp_rank", "priority", "routing_key"]) {
    const key = `enginewire-${field.replace("_", "-")}`;
    const text = metadata.get(key)[0]?.toString();
    if (text === undefined) continue;
    const value = field === "routing_key" ? text : Number(text);
    const isWrong = Number.isNaN(value) || (routing[field] !== undefined && routing[field] !== value);
    if (isWrong) throw new Failure("INVALID_REQUEST", key, `no number, or not what routing.${field} says`);
    routing[field] = value;
    request.routing ??= routing as unknown as NonNullable<typeof request.routing>;
  }
}

function milliseconds(field: string, duration: Duration | undefined, absent: number): number {
  if (!duration) return absent;
  const value = Number(duration.seconds) * 1000 + duration.nanos / 1e6;
  if (value < 0) throw new Failure("INVALID_REQUEST", field, "must not be negative");
  return value;
}

/** Sends `current` at once and after every change, until it `isFinal` or the caller goes. */
function watch<Request, Response>(
  call: ServerWritableStream<Request, Response>,
  intervalMs: number,
  current: () => Response,
  codec: { encode(message: Response): { finish(): Uint8Array } },
  isFinal: (message: Response) => boolean,
): void {
  let last: Buffer | undefined;
  const send = () => {
    const message = current();
    const bytes = Buffer.from(codec.encode(message).finish());
    if (last === undefined || !bytes.equals(last)) call.write(message);
    last = bytes;
    if (!isFinal(message)) return;
    clearInterval(timer);
    call.end();
  };
  const timer = setInterval(send, intervalMs);
  call.on("cancelled", () => clearInterval(timer));
  send();
}
