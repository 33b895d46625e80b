// The engine: eight slots, a queue, and one token per running request and step. The next token is a hash of
// prompt and position. Also what a server is doing: ready, draining, stopped. Knows nothing about gRPC.

import { randomUUID } from "node:crypto";
import { EngineState, Load } from "../gen/enginewire/v1/discovery_service.js";
import { AbortOutcome, AbortResult, DrainResponse, DrainState } from "../gen/enginewire/v1/engine_service.js";
import { FinishReason } from "../gen/enginewire/v1/output.js";
import type { PreprocessedRequest } from "../gen/enginewire/v1/request.js";
import { Failure } from "./failure.js";

export const VOCAB_SIZE = 1000;
export const EOS = 2;
export const CONTEXT_LENGTH = 4096;
export const MAX_RUNNING = 8;
export const MAX_WAITING = 256;
const STEP_MS = 4;
const REMEMBER_MS = 10_000;
const REMEMBERED = 4096;

/** What one step gives a request: a token, its end, or both. Nothing follows an end. */
export type Output = { token?: number; end?: FinishReason; stopId?: number };
const CANCELLED: Output = { end: FinishReason.FINISH_REASON_CANCELLED };

export interface Sequence {
  id: string;
  request: PreprocessedRequest;
  outputs: Iterator<Output, Output>;
  send(output: Output): void;
}

/** The outputs of a request, the last one returned. A hidden stop wins over a visible one. */
export function* outputsOf(request: PreprocessedRequest): Iterator<Output, Output> {
  const { token_ids, eos_token_ids, is_probe, stop_conditions: stop } = request;
  const room = CONTEXT_LENGTH - token_ids.length;
  const most = Math.min(stop?.max_tokens ?? (is_probe ? 1 : room), room);
  const visible = new Set([...(stop?.stop_token_ids ?? []), ...(stop?.stop_token_ids_visible ?? [])]);
  const eos = eos_token_ids.length > 0 ? eos_token_ids : [EOS];
  const hidden = new Set(stop?.ignore_eos ? [] : [...eos, ...(stop?.stop_token_ids_hidden ?? [])]);
  const hash = token_ids.reduce((hash, token) => Math.imul(hash ^ token, 16777619), 2166136261);
  for (let position = 0; ; position++) {
    let mixed = hash + Math.imul(position, 0x9e3779b9);
    mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
    const token = 3 + (((mixed ^ (mixed >>> 16)) >>> 0) % (VOCAB_SIZE - 3));
    const mayStop = position + 1 >= (stop?.min_tokens ?? 0);
    if (mayStop && hidden.has(token)) return { token, end: FinishReason.FINISH_REASON_EOS };
    if (mayStop && visible.has(token)) return { token, end: FinishReason.FINISH_REASON_STOP, stopId: token };
    if (position + 1 >= most) return { token, end: FinishReason.FINISH_REASON_LENGTH };
    yield { token };
  }
}

export class Engine {
  readonly lifetimeId = randomUUID();
  private state = EngineState.ENGINE_STATE_READY;
  // In the order of arrival: the first ones run, the others wait.
  private live = new Map<string, Sequence>();
  private past = new Map<string, AbortOutcome>();
  private counts = { step: 0n, requests_finished: 0n, tokens_generated: 0n };
  private isCleaning = false;
  private graceEnd = Infinity;
  private deadline = Infinity;
  private drained = DrainState.DRAIN_STATE_UNSPECIFIED;

  constructor(private readonly onState: (state: EngineState) => void) {
    setInterval(() => this.step(), STEP_MS).unref();
  }

  /** Accepts the request, or throws a Failure and nothing has happened. */
  admit(sequence: Sequence): void {
    const { id } = sequence;
    if (this.isCleaning) throw new Failure("ENGINE_DEAD", "", "the engine was cleaned up");
    if (this.isClosed) throw new Failure("DRAINING", "", "the server is draining");
    if (this.live.has(id)) throw new Failure("DUPLICATE_ID", "request_id", "is live");
    if (this.past.get(id) === AbortOutcome.ABORT_OUTCOME_UNKNOWN && this.past.delete(id))
      throw new Failure("CANCELLED", "request_id", "aborted before it arrived");
    if (this.live.size >= MAX_RUNNING + MAX_WAITING) {
      const facts = { queue_depth: `${this.live.size - MAX_RUNNING}`, limit: `${MAX_WAITING}` };
      throw new Failure("QUEUE_FULL", "", "the queue is full", facts);
    }
    this.live.set(id, sequence);
  }

  /** Ends a request, if it is live. */
  remove(sequence: Sequence, last: Output = CANCELLED): void {
    if (this.live.get(sequence.id) !== sequence) return;
    this.live.delete(sequence.id);
    this.counts.requests_finished += 1n;
    this.remember(sequence.id, AbortOutcome.ABORT_OUTCOME_FINISHED);
    sequence.send(last);
  }

  abort(ids = [...this.live.keys()]): AbortResult[] {
    return ids.map((request_id) => ({ request_id, outcome: this.abortOne(request_id) }));
  }

  load(): Load {
    const sequences = [...this.live.values()];
    const waiting = sequences.slice(MAX_RUNNING);
    return Load.fromPartial({
      ...this.counts,
      running: sequences.length - waiting.length,
      waiting: waiting.length,
      waiting_tokens: BigInt(waiting.reduce((sum, { request }) => sum + request.token_ids.length, 0)),
      state: this.state,
      engine_lifetime_id: this.lifetimeId,
    });
  }

  /** Begins the drain or joins it. Of several deadlines the earliest wins; the grace is that of the first caller. */
  drain(deadlineMs: number, graceMs: number): DrainResponse {
    const now = performance.now();
    this.deadline = Math.min(this.deadline, now + deadlineMs);
    if (this.graceEnd === Infinity) this.graceEnd = now + graceMs;
    if (this.state === EngineState.ENGINE_STATE_READY) this.enter(EngineState.ENGINE_STATE_DRAINING);
    return this.progress();
  }

  progress(): DrainResponse {
    const state = this.drainState();
    const running = Math.min(this.live.size, MAX_RUNNING);
    return { state, running, waiting: this.live.size - running, pending_transfers: 0 };
  }

  /** True when an earlier call had cleaned up. */
  async cleanup(abortInFlight: boolean): Promise<boolean> {
    this.isCleaning = true;
    if (this.state === EngineState.ENGINE_STATE_READY) this.enter(EngineState.ENGINE_STATE_DRAINING);
    if (abortInFlight) this.abort();
    while (this.live.size > 0) await new Promise((done) => setTimeout(done, STEP_MS));
    const wasClean = this.state === EngineState.ENGINE_STATE_STOPPED;
    this.enter(EngineState.ENGINE_STATE_STOPPED);
    return wasClean;
  }

  private step(): void {
    const running = [...this.live.values()].slice(0, MAX_RUNNING);
    if (running.length > 0) this.counts.step += 1n;
    for (const sequence of running) {
      const { value, done } = sequence.outputs.next();
      this.counts.tokens_generated += 1n;
      if (done) this.remove(sequence, value);
      else sequence.send(value);
    }
    this.drainState();
  }

  private abortOne(id: string): AbortOutcome {
    const sequence = this.live.get(id);
    if (sequence) {
      this.remove(sequence);
      return AbortOutcome.ABORT_OUTCOME_ABORTED;
    }
    if (!this.past.has(id)) this.remember(id, AbortOutcome.ABORT_OUTCOME_UNKNOWN);
    return this.past.get(id)!;
  }

  /** What the next abort of this id is told; an unknown id that arrives after its abort is refused. */
  private remember(id: string, outcome: AbortOutcome): void {
    this.past.set(id, outcome);
    if (this.past.size > REMEMBERED) this.past.delete(this.past.keys().next().value!);
    setTimeout(() => this.past.delete(id), REMEMBER_MS).unref();
  }

  private get isClosed(): boolean {
    return performance.now() >= Math.min(this.graceEnd, this.deadline);
  }

  private drainState(): DrainState {
    if (this.drained) return this.drained;
    if (!this.isClosed) return DrainState.DRAIN_STATE_GRACE;
    if (this.live.size === 0) return (this.drained = DrainState.DRAIN_STATE_DRAINED);
    if (performance.now() < this.deadline) return DrainState.DRAIN_STATE_DRAINING;
    this.abort();
    return (this.drained = DrainState.DRAIN_STATE_TIMED_OUT);
  }

  private enter(state: EngineState): void {
    this.state = state;
    this.onState(state);
  }
}
