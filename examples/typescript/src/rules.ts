// Which requests the engine may be given. Rules that are data are tables of paths below GenerateRequest.request,
// which the generated code also uses as names.

import type { GenerateRequest } from "../gen/enginewire/v1/engine_service.js";
import type { PreprocessedRequest } from "../gen/enginewire/v1/request.js";
import { CONTEXT_LENGTH, VOCAB_SIZE } from "./engine.js";
import { Failure, type Reason } from "./failure.js";

export const MODEL = "hash";
export const REVISION = 1;
const NAME = /^[A-Za-z0-9._:-]{1,128}$/;

type Range = [path: string, low: number, high: number, isAboveLow?: boolean];
const RANGES: Range[] = [
  ["stop_conditions.max_tokens", 1, Infinity],
  ["sampling_options.n", 1, Infinity],
  ["sampling_options.best_of", 1, Infinity],
  ["sampling_options.temperature", 0, 100],
  ["sampling_options.top_p", 0, 1, true],
  ["sampling_options.top_k", -1, VOCAB_SIZE],
  ["sampling_options.min_p", 0, 1],
  ["sampling_options.presence_penalty", -2, 2],
  ["sampling_options.frequency_penalty", -2, 2],
  ["sampling_options.repetition_penalty", 0, 10, true],
  ["output_options.stream_interval", 1, Infinity],
  ["routing.dp_rank", 0, 0],
];

// Capabilities this engine does not have. A field that holds its neutral value asks for nothing.
type Gate = [path: string, neutral?: number | boolean | string];
// prettier-ignore
const GATES: Gate[] = [
  ["multi_modal_data"], ["mm_processor_kwargs"], ["resume"],
  ["stop_conditions.stop"], ["stop_conditions.max_thinking_tokens"],
  ["sampling_options.n", 1], ["sampling_options.best_of", 1],
  ["sampling_options.use_beam_search", false], ["sampling_options.length_penalty", 1],
  ["sampling_options.presence_penalty", 0], ["sampling_options.frequency_penalty", 0],
  ["sampling_options.repetition_penalty", 1], ["sampling_options.min_p", 0], ["sampling_options.seed"],
  ["sampling_options.guided_decoding"], ["sampling_options.logit_bias"],
  ["sampling_options.allowed_token_ids"], ["sampling_options.bad_words_token_ids"],
  ["sampling_options.include_stop_str_in_output"],
  ["output_options.logprobs"], ["output_options.prompt_logprobs"], ["output_options.logprob_token_ids"],
  ["output_options.skip_special_tokens"], ["output_options.formatted_prompt"],
  ["output_options.return_tokens_as_token_ids"],
  ["routing.lora_name", ""], ["routing.priority", 0], ["routing.priority_jump", 0],
];

const TOKEN_IDS: [path: string, most: number][] = [
  ["eos_token_ids", 256],
  ["stop_conditions.stop_token_ids", 256],
  ["stop_conditions.stop_token_ids_visible", 256],
  ["stop_conditions.stop_token_ids_hidden", 256],
  ["sampling_options.allowed_token_ids", 65536],
  ["output_options.logprob_token_ids", 256],
];

const OPAQUE_JSON = [
  "extra_args",
  "mm_processor_kwargs",
  "router_config_override.extra",
  "agent_context.extra",
];

/** Throws a Failure that names the field, or returns what the engine has to compute. */
export function check(generate: GenerateRequest): PreprocessedRequest {
  const { request_id, client_revision, request } = generate;
  refuse(!NAME.test(request_id), "INVALID_REQUEST", "request_id", `not a valid id, allowed ${NAME.source}`);
  if (client_revision > REVISION) {
    const range = { minimum_client_revision: `${REVISION}`, maximum_client_revision: `${REVISION}` };
    throw new Failure(
      "REVISION_MISMATCH",
      "client_revision",
      `not served, got ${client_revision}, allowed ${REVISION}`,
      range,
    );
  }
  if (!request) throw new Failure("INVALID_REQUEST", "request", "must be set");
  refuse(request.model !== "" && request.model !== MODEL, "MODEL_NOT_FOUND", "model", "no such model here");
  checkNumbers("", request);
  for (const field of ["prefill_result", "bootstrap_info"] as const) {
    refuse(
      request[field] !== undefined && !request.is_probe,
      "ROLE_MISMATCH",
      field,
      "this engine is AGGREGATED",
    );
  }
  checkPrompt(request);
  RANGES.forEach((range) => checkRange(request, range));
  checkTokenIds(request);
  GATES.forEach((gate) => checkGate(request, gate));
  checkLengths(request);
  checkBytes(request);
  return request;
}

function refuse(isWrong: boolean, reason: Reason, path: string, message: string): void {
  if (isWrong) throw new Failure(reason, path, message);
}

function at(request: PreprocessedRequest, path: string): any {
  return path.split(".").reduce((owner: any, name) => owner?.[name], request);
}

function checkPrompt(request: PreprocessedRequest): void {
  refuse(
    request.prompt_embeds !== undefined,
    "UNSUPPORTED",
    "prompt_embeds",
    "needs the capability prompt_embeds",
  );
  const count = request.token_ids.length;
  refuse(count === 0, "INVALID_REQUEST", "token_ids", "must not be empty");
  refuse(
    count >= CONTEXT_LENGTH,
    "CONTEXT_EXCEEDED",
    "token_ids",
    `exceeds the context, got ${count} tokens, allowed 1..${CONTEXT_LENGTH - 1}`,
  );
  checkIds("token_ids", request.token_ids);
}

function checkIds(path: string, ids: number[]): void {
  const i = ids.findIndex((id) => id >= VOCAB_SIZE);
  refuse(
    i >= 0,
    "INVALID_REQUEST",
    `${path}[${i}]`,
    `not in the vocabulary, got ${ids[i]}, allowed 0..${VOCAB_SIZE - 1}`,
  );
}

/** Every number of every sub-message is finite. Lists of numbers are ids and need no look. */
function checkNumbers(path: string, message: object): void {
  for (const [name, value] of Object.entries(message)) {
    const here = Array.isArray(message) ? `${path}[${name}]` : path ? `${path}.${name}` : name;
    if (typeof value === "number") refuse(!Number.isFinite(value), "INVALID_REQUEST", here, "must be finite");
    const isPlain = value instanceof Uint8Array || (Array.isArray(value) && typeof value[0] !== "object");
    if (typeof value === "object" && value !== null && !isPlain) checkNumbers(here, value);
  }
}

function checkRange(request: PreprocessedRequest, [path, low, high, isAboveLow]: Range): void {
  const value: number | undefined = at(request, path);
  const isOutside =
    value !== undefined && (value < low || value > high || (isAboveLow === true && value === low));
  refuse(
    isOutside,
    "INVALID_REQUEST",
    path,
    `out of range, got ${value}, allowed ${isAboveLow ? "above " : ""}${low} to ${high}`,
  );
}

function checkTokenIds(request: PreprocessedRequest): void {
  for (const [path, most] of TOKEN_IDS) {
    const ids: number[] = at(request, path) ?? [];
    refuse(ids.length > most, "INVALID_REQUEST", path, `too many, got ${ids.length}, allowed 0..${most}`);
    checkIds(path, ids);
  }
  const { logit_bias = [], bad_words_token_ids = [] } = request.sampling_options ?? {};
  logit_bias.forEach((bias, i) => {
    const path = `sampling_options.logit_bias[${i}].token_id`;
    refuse(bias.token_id >= VOCAB_SIZE, "INVALID_REQUEST", path, "not in the vocabulary");
  });
  bad_words_token_ids.forEach((word, i) =>
    checkIds(`sampling_options.bad_words_token_ids[${i}].token_ids`, word.token_ids),
  );
}

function checkGate(request: PreprocessedRequest, [path, neutral]: Gate): void {
  const value = at(request, path);
  const isUnset = value === undefined || value === neutral || value.length === 0;
  refuse(!isUnset, "UNSUPPORTED", path, "this engine does not advertise the capability");
}

function checkLengths(request: PreprocessedRequest): void {
  const { max_tokens, min_tokens = 0 } = request.stop_conditions ?? {};
  const path = "stop_conditions.min_tokens";
  refuse(
    max_tokens !== undefined && min_tokens > max_tokens,
    "INVALID_REQUEST",
    path,
    `above max_tokens, got ${min_tokens}, allowed 0..${max_tokens}`,
  );
  const room = CONTEXT_LENGTH - request.token_ids.length;
  refuse(
    min_tokens > room,
    "CONTEXT_EXCEEDED",
    path,
    `exceeds the context, got ${min_tokens}, allowed 0..${room}`,
  );
}

function checkBytes(request: PreprocessedRequest): void {
  const { annotations } = request;
  refuse(
    annotations.length > 64,
    "INVALID_REQUEST",
    "annotations",
    `too many, got ${annotations.length}, allowed 0..64`,
  );
  annotations.forEach((text, i) => {
    refuse(
      Buffer.byteLength(text) > 1024,
      "INVALID_REQUEST",
      `annotations[${i}]`,
      "too long, allowed 0..1024 bytes",
    );
  });
  for (const path of OPAQUE_JSON) {
    const json: Uint8Array | undefined = at(request, path);
    refuse((json?.length ?? 0) > 65536, "INVALID_REQUEST", path, "too long, allowed 0..65536 bytes");
    refuse(
      json !== undefined && json.length > 0 && !isJsonObject(json),
      "INVALID_REQUEST",
      path,
      "must be a JSON object of at most 64 levels",
    );
  }
}

function isJsonObject(json: Uint8Array): boolean {
  try {
    const value: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(json));
    return typeof value === "object" && value !== null && !Array.isArray(value) && depth(value) <= 64;
  } catch {
    return false;
  }
}

function depth(value: unknown): number {
  if (typeof value !== "object" || value === null) return 0;
  return 1 + Object.values(value).reduce((deepest: number, inner) => Math.max(deepest, depth(inner)), 0);
}
