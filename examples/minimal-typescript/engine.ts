// The smallest engine of the contract: `node dist/engine.js 127.0.0.1:50051`, or `unix:/run/engine.sock`.
// Its model is a hash: `generate` has it where a real engine calls its own.

import { Metadata, Server, ServerCredentials, status } from "@grpc/grpc-js";
import type { sendUnaryData, ServerUnaryCall, ServerWritableStream } from "@grpc/grpc-js";
import { HealthImplementation } from "grpc-health-check";
import { ifError } from "node:assert";
import { setTimeout as sleep } from "node:timers/promises";
import * as discovery from "./gen/enginewire/v1/discovery_service.js";
import * as wire from "./gen/enginewire/v1/engine_service.js";
import { ErrorDetail, ErrorReason, Status } from "./gen/enginewire/v1/error.js";
import { CompletionUsage, FinishReason as Reason, LLMEngineOutput } from "./gen/enginewire/v1/output.js";
import { PreprocessedRequest, protoMetadata, StopConditions } from "./gen/enginewire/v1/request.js";

const [SLOTS, QUEUE, WINDOW, VOCABULARY, EOS, STEP_MS, SHUTDOWN_MS] = [8, 64, 4096, 1000, 2, 5, 30_000];
const [LIFE, REVISION, ID] = [`${process.hrtime.bigint()}`, 2, /^[A-Za-z0-9._:-]{1,128}$/];
const SERVICES = ["enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"];
const RULES = protoMetadata.options!.messages!;
const { DRAIN_STATE_DRAINING, DRAIN_STATE_DRAINED, DRAIN_STATE_TIMED_OUT } = wire.DrainState;

const DIGEST = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401";
const sampling = { temperature: 1, top_p: 1, repetition_penalty: 1 };
const bounds = { context_length: WINDOW, max_num_seqs: BigInt(SLOTS), vocab_size: VOCABULARY };
const abilities = { capabilities: { default_sampling: sampling }, limits: { max_num_queued_reqs: QUEUE } };
const config = { model: "hash", role: discovery.EngineRole.ENGINE_ROLE_AGGREGATED, ...bounds, ...abilities };
const names = { engine_name: "minimal-typescript", engine_version: "1", schema_digest: DIGEST };
const INFO = discovery.GetEngineInfoResponse.fromPartial({ config, ...names });
INFO.instance_id = INFO.engine_lifetime_id = LIFE;
INFO.contract_revision = INFO.minimum_client_revision = INFO.maximum_client_revision = REVISION;

type Generate = ServerWritableStream<wire.GenerateRequest, wire.GenerateResponse>;
type Name<K = keyof typeof ErrorReason> = K extends `ERROR_REASON_${infer N}` ? N : never;

/** A status alone, whose details say the reason and the field. */
function refusal(code: status, reason: Name, field: string, text: string) {
  const retryable = reason === "DRAINING" || reason === "QUEUE_FULL";
  const detail = ErrorDetail.fromPartial({ reason: ErrorReason[`ERROR_REASON_${reason}`], field, retryable });
  const value = Buffer.from(ErrorDetail.encode(detail).finish());
  const details = [{ type_url: "type.googleapis.com/enginewire.v1.ErrorDetail", value }];
  const metadata = new Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from(Status.encode({ code, message: text, details }).finish()));
  return Object.assign(new Error(text), { code, details: `${field}: ${text}`, metadata });
}

const invalid = (field: string, text: string) => refusal(status.INVALID_ARGUMENT, "INVALID_REQUEST", field, text);

/** Holds each field that is set against its rule, which is an option of the field in the contract. */
function checkFields(type: string, owner: string, message: object): void {
  for (const [name, value] of Object.entries(message)) {
    if (value === undefined || value.length === 0) continue;
    const [path, rule] = [owner + name, RULES[type]?.fields?.[name]?.rule ?? {}];
    const size = Number(value.length ?? (typeof value === "object" ? 0 : value));
    const [least, most] = [rule.min ?? -Infinity, rule.max ?? (rule.token_count ? VOCABULARY : rule.bound) ?? Infinity];
    if (!(size >= least && size <= most) || (rule.above_min && size === least))
      throw invalid(path, `got ${size}, allowed ${least}..${most}`);
    if (rule.capability && size !== rule.neutral)
      throw refusal(status.UNIMPLEMENTED, "UNSUPPORTED", path, `${rule.capability} is not advertised`);
    if (rule.token_ids && value.some((id: number) => id >= VOCABULARY))
      throw invalid(path, `not in the vocabulary, allowed 0..${VOCABULARY - 1}`);
    const inner = name.replace(/(^|_)./g, (start) => start.slice(-1).toUpperCase()).replace("Routing", "RoutingHints");
    if (RULES[inner] && typeof value === "object") checkFields(inner, `${path}.`, value);
  }
}

// The requests that are live, in the order of their arrival: the first ones run, the others wait.
const live = new Map<string, Generate>();
let [deadline, signals, drained] = [Infinity, 0, DRAIN_STATE_DRAINING];
const health = new HealthImplementation(Object.fromEntries(["", ...SERVICES].map((name) => [name, "SERVING"])));

function admit(call: Generate): PreprocessedRequest {
  const { request_id: id, request = PreprocessedRequest.create() } = call.request;
  checkFields("PreprocessedRequest", "", request);
  const { token_ids, model, stop_conditions: stop } = request;
  const [count, least, most] = [token_ids.length, Math.max(stop?.min_tokens ?? 0, 1), stop?.max_tokens ?? WINDOW];
  const rules = [
    [ID.test(id), status.INVALID_ARGUMENT, "INVALID_REQUEST", "request_id", `allowed ${ID}`],
    [call.request.request, status.INVALID_ARGUMENT, "INVALID_REQUEST", "request", "must be set"],
    [["", "hash"].includes(model), status.NOT_FOUND, "MODEL_NOT_FOUND", "model", "no such model here"],
    [count > 0, status.INVALID_ARGUMENT, "INVALID_REQUEST", "token_ids", "must not be empty"],
    [least <= most, status.INVALID_ARGUMENT, "INVALID_REQUEST", "stop_conditions.min_tokens", `allowed ${most}`],
    [count + least <= WINDOW, status.INVALID_ARGUMENT, "CONTEXT_EXCEEDED", "token_ids", `got ${count} of ${WINDOW}`],
    [deadline === Infinity, status.UNAVAILABLE, "DRAINING", "", "the server is draining"],
    [!live.has(id), status.ALREADY_EXISTS, "DUPLICATE_ID", "request_id", "is live"],
    [live.size < SLOTS + QUEUE, status.RESOURCE_EXHAUSTED, "QUEUE_FULL", "", "the queue is full"],
  ] as const;
  for (const [isKept, code, reason, field, text] of rules) if (!isKept) throw refusal(code, reason, field, text);
  live.set(id, call);
  return request;
}

/** A token per step while the request is among the first ones, until something ends it. */
async function generate(call: Generate): Promise<void> {
  const [{ token_ids, eos_token_ids, is_probe, stop_conditions }, id] = [admit(call), call.request.request_id];
  call.on("cancelled", () => live.get(id) === call && live.delete(id)); // also the deadline, a lost connection
  call.sendMetadata(new Metadata());
  const [stop, size] = [stop_conditions ?? StopConditions.create(), token_ids.length];
  const eos = stop.ignore_eos ? [] : [...stop.stop_token_ids_hidden, ...(eos_token_ids.length ? eos_token_ids : [EOS])];
  const most = Math.min(stop.max_tokens ?? (is_probe ? 1 : WINDOW), WINDOW - size);
  const seed = token_ids.reduce((hash, token) => Math.imul(hash ^ token, 16777619) >>> 0, 2166136261);
  for (let [why, done] = [0, 0]; !why && !call.cancelled; ) {
    await sleep(STEP_MS);
    const output = LLMEngineOutput.fromPartial({ first_output_position: done });
    const engine_lifetime_id = done ? "" : LIFE;
    if (live.get(id) !== call) why = Reason.FINISH_REASON_CANCELLED;
    else if (![...live.keys()].slice(0, SLOTS).includes(id)) continue;
    else {
      const token = 3 + ((Math.imul(seed + Math.imul(done++, 0x9e3779b9), 0x85ebca6b) >>> 7) % (VOCABULARY - 3));
      output.token_ids = [token];
      const mayStop = done >= (stop.min_tokens ?? 0);
      if (mayStop && eos.includes(token)) why = Reason.FINISH_REASON_EOS;
      else if (mayStop && [...stop.stop_token_ids, ...stop.stop_token_ids_visible].includes(token)) {
        why = Reason.FINISH_REASON_STOP;
        output.stop_match = { token_id: token };
      } else if (done === most) why = Reason.FINISH_REASON_LENGTH;
      if (why) live.delete(id);
    }
    const usage = { prompt_tokens: size, completion_tokens: done, total_tokens: size + done };
    if (why) output.completion_usage = CompletionUsage.fromPartial(usage);
    output.finish_reason = why;
    call.write({ output, request_id: id, engine_lifetime_id, engine_event: undefined });
  }
  call.end();
}

/** Begins a drain or joins it; ends it when nothing is live or its time is over. */
async function drain(ms: number, tell: (state: wire.DrainState) => unknown): Promise<void> {
  SERVICES.forEach((name) => health.setStatus(name, "NOT_SERVING"));
  deadline = Math.min(deadline, performance.now() + ms);
  for (let state = DRAIN_STATE_DRAINING; state === DRAIN_STATE_DRAINING; await sleep(STEP_MS)) {
    const isOver = performance.now() >= deadline || live.size === 0;
    if (isOver && drained === state) drained = live.size ? DRAIN_STATE_TIMED_OUT : DRAIN_STATE_DRAINED;
    if (isOver) live.clear();
    tell((state = drained));
  }
}

function abort(call: ServerUnaryCall<wire.AbortRequest, wire.AbortResponse>, reply: sendUnaryData<wire.AbortResponse>) {
  const { request_ids, all } = call.request;
  if (all === request_ids.length > 0) return reply(invalid("request_ids", "either these or all"));
  const { ABORT_OUTCOME_ABORTED, ABORT_OUTCOME_UNKNOWN } = wire.AbortOutcome;
  const end = (id: string) => (live.delete(id) ? ABORT_OUTCOME_ABORTED : ABORT_OUTCOME_UNKNOWN);
  const ids = all ? [...live.keys()] : request_ids;
  return reply(null, { results: ids.map((request_id) => ({ request_id, outcome: end(request_id) })) });
}

function load(): discovery.GetLoadResponse {
  const state = discovery.EngineState[`ENGINE_STATE_${deadline === Infinity ? "READY" : "DRAINING"}`];
  const [running, waiting] = [Math.min(live.size, SLOTS), Math.max(live.size - SLOTS, 0)];
  return discovery.GetLoadResponse.fromPartial({ load: { running, waiting, state, engine_lifetime_id: LIFE } });
}

const server = new Server();
server.addService(wire.EngineServiceService, {
  abort,
  generate: (call: Generate) => generate(call).catch((error) => call.emit("error", error)),
  drain: async (call: ServerWritableStream<wire.DrainRequest, wire.DrainResponse>) => {
    const { seconds, nanos } = call.request.deadline ?? { seconds: SHUTDOWN_MS / 1000, nanos: 0 };
    const ms = Number(seconds) * 1000 + nanos / 1e6;
    if (ms < 0) return void call.emit("error", invalid("deadline", `got ${ms} ms, allowed 0 or more`));
    await drain(ms, (state) => call.write(wire.DrainResponse.fromPartial({ state, running: live.size })));
    call.end();
  },
});
server.addService(discovery.DiscoveryServiceService, {
  getEngineInfo: (_: unknown, reply: sendUnaryData<discovery.GetEngineInfoResponse>) => reply(null, INFO),
  getLoad: (_: unknown, reply: sendUnaryData<discovery.GetLoadResponse>) => reply(null, load()),
});
health.addToServer(server);
server.bindAsync(process.argv[2]!, ServerCredentials.createInsecure(), ifError);

// The first signal drains, the next one ends the drain; the last outputs are on their way then.
const onSignal = () => drain(signals++ ? 0 : SHUTDOWN_MS, () => undefined).then(() => setTimeout(process.exit, 500, 0));
process.on("SIGTERM", onSignal).on("SIGINT", onSignal);
