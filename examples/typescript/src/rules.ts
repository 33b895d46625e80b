// Which requests the engine may be given. Paths are those below GenerateRequest.request, which the generated
// code also uses as names. A field that no table names is a capability this engine does not have.

import type { GenerateRequest } from "../gen/enginewire/v1/engine_service.js";
import type { PreprocessedRequest } from "../gen/enginewire/v1/request.js";
import { CONTEXT_LENGTH, VOCAB_SIZE } from "./engine.js";
import { Failure } from "./failure.js";

export const MODEL = "hash";
export const REVISION = 2;
export const OLDEST_REVISION = 1;

// Of a list, a text and bytes the length counts. Lists of numbers are token ids.
const RANGES: { [path: string]: [low: number, high: number] } = {
  token_ids: [0, Infinity],
  eos_token_ids: [0, 256],
  "stop_conditions.max_tokens": [1, Infinity],
  "stop_conditions.min_tokens": [0, Infinity],
  "stop_conditions.stop_token_ids": [0, 256],
  "stop_conditions.stop_token_ids_visible": [0, 256],
  "stop_conditions.stop_token_ids_hidden": [0, 256],
  "sampling_options.n": [1, Infinity],
  "sampling_options.temperature": [0, 100],
  "sampling_options.top_p": [Number.MIN_VALUE, 1],
  "sampling_options.top_k": [-1, VOCAB_SIZE],
  "output_options.stream_interval": [1, Infinity],
  "routing.dp_rank": [0, 0],
  annotations: [0, 64],
  extra_args: [0, 65536],
};

// Fields of other capabilities, and the value with which they ask for nothing.
const NEUTRAL: { [path: string]: number | boolean | string } = {
  "sampling_options.n": 1,
  "sampling_options.best_of": 1,
  "sampling_options.presence_penalty": 0,
  "sampling_options.frequency_penalty": 0,
  "sampling_options.repetition_penalty": 1,
  "sampling_options.min_p": 0,
  "sampling_options.use_beam_search": false,
  "sampling_options.length_penalty": 1,
  "routing.lora_name": "",
  "routing.priority": 0,
  "routing.priority_jump": 0,
};

// prettier-ignore
const ANYTHING = new Set([
  "model", "stop_conditions.ignore_eos", "is_probe", "cache_salt", "bypass_prefix_cache",
  // For routers and callers:
  "mm_routing_info", "mdc_sum", "router_config_override", "migration_link", "router", "agent_context",
  "request_timestamp_ms", "routing.backend_instance_id", "routing.prefill_worker_id",
  "routing.decode_worker_id", "routing.prefill_dp_rank", "routing.expected_output_tokens",
  "routing.allowed_worker_ids", "routing.routing_constraints", "routing.session_control",
  "routing.routing_key",
]);
const CONTAINERS = new Set(["stop_conditions", "sampling_options", "output_options", "routing"]);
const OTHER_ROLES = new Set(["prefill_result", "bootstrap_info"]);

/** Throws a Failure that names the field, or returns what the engine has to compute. */
export function check({ request_id, client_revision, request }: GenerateRequest): PreprocessedRequest {
  require(/^[A-Za-z0-9._:-]{1,128}$/.test(request_id), "request_id", "not 1 to 128 of A-Z a-z 0-9 . _ : -");
  if (client_revision > REVISION) {
    const range = { minimum_client_revision: `${OLDEST_REVISION}`, maximum_client_revision: `${REVISION}` };
    const text = `not served, got ${client_revision}, allowed 0..${REVISION}`;
    throw new Failure("REVISION_MISMATCH", "client_revision", text, range);
  }
  if (!request) throw new Failure("INVALID_REQUEST", "request", "must be set");
  checkFields("", request);
  const { model, token_ids, annotations, stop_conditions: stop } = request;
  if (model !== "" && model !== MODEL) throw new Failure("MODEL_NOT_FOUND", "model", "no such model here");
  require(token_ids.length > 0, "token_ids", "must not be empty");
  const room = CONTEXT_LENGTH - token_ids.length;
  if (room < 1)
    throw new Failure("CONTEXT_EXCEEDED", "token_ids", `${token_ids.length} of at most ${CONTEXT_LENGTH - 1}`);
  const least = stop?.min_tokens ?? 0;
  const path = "stop_conditions.min_tokens";
  require(least <= (stop?.max_tokens ?? Infinity), path, `above max_tokens, got ${least}`);
  if (least > room) throw new Failure("CONTEXT_EXCEEDED", path, `got ${least}, allowed 0..${room}`);
  const long = annotations.findIndex((text) => Buffer.byteLength(text) > 1024);
  require(long < 0, `annotations[${long}]`, "longer than 1024 bytes");
  return request;
}

/** Looks at every field of `message` that is set. */
function checkFields(owner: string, message: object): void {
  for (const [name, value] of Object.entries(message)) {
    const path = owner + name;
    if (value === undefined || value.length === 0) continue;
    checkFinite(path, value);
    if (CONTAINERS.has(path)) checkFields(`${path}.`, value);
    else if (OTHER_ROLES.has(path)) throw new Failure("ROLE_MISMATCH", path, "this engine is AGGREGATED");
    else checkValue(path, value);
  }
}

function checkValue(path: string, value: any): void {
  const [low, high] = RANGES[path] ?? [];
  const size = value.length ?? value;
  if (low !== undefined && high !== undefined)
    require(size >= low && size <= high, path, `got ${size}, allowed ${low}..${high}`);
  if (path in RANGES && typeof value[0] === "number" && !(value instanceof Uint8Array)) {
    const i = value.findIndex((id: number) => id >= VOCAB_SIZE);
    require(i < 0, `${path}[${i}]`, `not in the vocabulary, got ${value[i]}, allowed 0..${VOCAB_SIZE - 1}`);
  }
  const isKnown = path in NEUTRAL ? value === NEUTRAL[path] : path in RANGES || ANYTHING.has(path);
  if (!isKnown) throw new Failure("UNSUPPORTED", path, "this engine does not advertise the capability");
}

/** No number in `value`, however deep, is NaN or an infinity. */
function checkFinite(path: string, value: unknown): void {
  if (typeof value === "number") require(Number.isFinite(value), path, "must be finite");
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return;
  if (Array.isArray(value)) value.forEach((entry, i) => checkFinite(`${path}[${i}]`, entry));
  else Object.entries(value).forEach(([name, inner]) => checkFinite(`${path}.${name}`, inner));
}

function require(isRight: boolean, path: string, text: string): void {
  if (!isRight) throw new Failure("INVALID_REQUEST", path, text);
}
