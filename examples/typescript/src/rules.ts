// Which requests the engine may be given. Paths are those below GenerateRequest.request, which the generated
// code also uses as names. This engine has none of the capabilities.

import type { GenerateRequest } from "../gen/enginewire/v1/engine_service.js";
import { type PreprocessedRequest, protoMetadata } from "../gen/enginewire/v1/request.js";
import type { FieldRule } from "../gen/enginewire/v1/rules.js";
import { CONTEXT_LENGTH, VOCAB_SIZE } from "./engine.js";
import { Failure } from "./failure.js";

export const MODEL = "hash";
export const REVISION = 2;
export const OLDEST_REVISION = 1;

// The rules of the fields are options of theirs in the contract; the generated code has them by message and field.
const RULES = protoMetadata.options!.messages!;
const CONTAINERS: { [path: string]: string } = {
  stop_conditions: "StopConditions",
  sampling_options: "SamplingOptions",
  output_options: "OutputOptions",
  routing: "RoutingHints",
  router_config_override: "RouterConfigOverride",
  agent_context: "AgentContext",
};
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
  checkFields("PreprocessedRequest", "", request);
  const { model, token_ids, stop_conditions: stop } = request;
  if (model !== "" && model !== MODEL) throw new Failure("MODEL_NOT_FOUND", "model", "no such model here");
  require(token_ids.length > 0, "token_ids", "must not be empty");
  const room = CONTEXT_LENGTH - token_ids.length;
  if (room < 1)
    throw new Failure("CONTEXT_EXCEEDED", "token_ids", `${token_ids.length} of at most ${CONTEXT_LENGTH - 1}`);
  const least = stop?.min_tokens ?? 0;
  const path = "stop_conditions.min_tokens";
  require(least <= (stop?.max_tokens ?? Infinity), path, `above max_tokens, got ${least}`);
  if (least > room) throw new Failure("CONTEXT_EXCEEDED", path, `got ${least}, allowed 0..${room}`);
  return request;
}

/** Looks at every field of `message`, which is a `type`, that is set. */
function checkFields(type: string, owner: string, message: object): void {
  for (const [name, value] of Object.entries(message)) {
    const path = owner + name;
    if (value === undefined || value.length === 0) continue;
    if (OTHER_ROLES.has(path)) throw new Failure("ROLE_MISMATCH", path, "this engine is AGGREGATED");
    checkFinite(path, value);
    const inner = CONTAINERS[path];
    if (inner) checkFields(inner, `${path}.`, value);
    else checkValue(RULES[type]?.fields?.[name]?.rule, path, value);
  }
}

/** Of a list, a text and bytes the length counts. */
function checkValue(rule: FieldRule | undefined, path: string, value: any): void {
  if (!rule) return;
  const size = Number(value.length ?? value);
  const { min = -Infinity, max = Infinity, bound = Infinity, max_entry_bytes: longest = Infinity } = rule;
  const isOutside = size < min || size > max || (rule.above_min && size === min);
  require(!isOutside, path, `got ${size}, allowed ${min}..${max}`);
  if (rule.capability && size !== rule.neutral)
    throw new Failure("UNSUPPORTED", path, `this engine does not advertise ${rule.capability}`);
  const most = rule.token_count ? VOCAB_SIZE : bound;
  require(!(size > most), path, `got ${size}, allowed at most ${most}`);
  if (!Array.isArray(value)) return;
  const id = rule.token_ids ? value.findIndex((id) => id >= VOCAB_SIZE) : -1;
  require(id < 0, `${path}[${id}]`, `not in the vocabulary, got ${value[id]}, allowed 0..${VOCAB_SIZE - 1}`);
  const long = value.findIndex((text) => typeof text === "string" && Buffer.byteLength(text) > longest);
  require(long < 0, `${path}[${long}]`, `longer than ${longest} bytes`);
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
