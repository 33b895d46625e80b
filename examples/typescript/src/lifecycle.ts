// What the server is doing: ready, draining, stopped; which requests are live; and the one drain.

import { randomUUID } from "node:crypto";
import { EngineState, Load } from "../gen/enginewire/v1/discovery_service.js";
import { AbortOutcome, DrainResponse, DrainState } from "../gen/enginewire/v1/engine_service.js";
import { Engine, MAX_RUNNING, MAX_WAITING, type Sequence } from "./engine.js";
import { Failure } from "./failure.js";

const REMEMBER_MS = 10_000;
const REMEMBERED = 4096;
const TICK_MS = 10;

export class Lifecycle {
  readonly engine = new Engine();
  readonly lifetimeId = randomUUID();
  state = EngineState.ENGINE_STATE_READY;
  private isCleaning = false;
  private sequences = new Map<string, Sequence>();
  private ended = new Set<string>();
  private earlyAborts = new Map<string, number>();
  private graceEnd = Infinity;
  private deadline = Infinity;
  private drained: DrainState | undefined;

  constructor(private readonly onNotReady: (isStopped: boolean) => void) {}

  /** Accepts the request, or throws a Failure and nothing has happened. */
  admit(id: string, sequence: Sequence): void {
    if (this.sequences.has(id)) throw new Failure("DUPLICATE_ID", "request_id", "is live");
    const abortedAt = this.earlyAborts.get(id) ?? -Infinity;
    this.earlyAborts.delete(id);
    if (performance.now() - abortedAt < REMEMBER_MS)
      throw new Failure("CANCELLED", "request_id", "aborted before it arrived");
    if (this.engine.live >= MAX_RUNNING + MAX_WAITING) {
      const facts = { queue_depth: `${this.engine.waiting.size}`, limit: `${MAX_WAITING}` };
      throw new Failure("QUEUE_FULL", "", "the queue is full", facts);
    }
    this.sequences.set(id, sequence);
    this.engine.submit(sequence);
  }

  checkOpen(): void {
    if (this.isCleaning) throw new Failure("ENGINE_DEAD", "", "the engine was cleaned up");
    if (performance.now() >= this.graceEnd) throw new Failure("DRAINING", "", "the server is draining");
  }

  /** The request has ended, however it ended. */
  forget(id: string, sequence: Sequence): void {
    if (this.sequences.get(id) !== sequence) return;
    this.sequences.delete(id);
    this.ended.add(id);
    if (this.ended.size > REMEMBERED) this.ended.delete(this.ended.values().next().value!);
  }

  abort(id: string): AbortOutcome {
    const sequence = this.sequences.get(id);
    if (sequence) {
      this.engine.remove(sequence, { why: "CANCELLED" });
      return AbortOutcome.ABORT_OUTCOME_ABORTED;
    }
    if (this.ended.has(id)) return AbortOutcome.ABORT_OUTCOME_FINISHED;
    this.earlyAborts.set(id, performance.now());
    if (this.earlyAborts.size > REMEMBERED) this.earlyAborts.delete(this.earlyAborts.keys().next().value!);
    return AbortOutcome.ABORT_OUTCOME_UNKNOWN;
  }

  liveIds(): string[] {
    return [...this.sequences.keys()];
  }

  load(): Load {
    const { engine } = this;
    return Load.fromPartial({
      running: engine.running.size,
      waiting: engine.waiting.size,
      waiting_tokens: BigInt([...engine.waiting].reduce((sum, sequence) => sum + sequence.prompt.length, 0)),
      step: engine.steps,
      requests_finished: engine.finished,
      tokens_generated: engine.tokensGenerated,
      state: this.state,
      engine_lifetime_id: this.lifetimeId,
    });
  }

  /** Begins the drain or joins it. Of several deadlines the earliest wins. */
  drain(deadlineMs: number, graceMs: number): void {
    const now = performance.now();
    this.deadline = Math.min(this.deadline, now + deadlineMs);
    if (this.graceEnd < Infinity) return;
    this.graceEnd = now + graceMs;
    this.leaveReady();
    const timer = setInterval(
      () => this.drainState() > DrainState.DRAIN_STATE_DRAINING && clearInterval(timer),
      TICK_MS,
    );
  }

  progress(): DrainResponse {
    const state = this.drainState();
    const { running, waiting } = this.engine;
    return { state, running: running.size, waiting: waiting.size, pending_transfers: 0 };
  }

  /** True when an earlier call had cleaned up. */
  async cleanup(abortInFlight: boolean): Promise<boolean> {
    this.isCleaning = true;
    const wasClean = this.state === EngineState.ENGINE_STATE_STOPPED;
    this.leaveReady();
    if (abortInFlight) this.liveIds().forEach((id) => this.abort(id));
    while (this.engine.live > 0) await new Promise((done) => setTimeout(done, TICK_MS));
    const isSecond = (this.state as EngineState) === EngineState.ENGINE_STATE_STOPPED;
    this.state = EngineState.ENGINE_STATE_STOPPED;
    this.onNotReady(true);
    return wasClean || isSecond;
  }

  private drainState(): DrainState {
    const now = performance.now();
    if (this.drained !== undefined) return this.drained;
    if (now < Math.min(this.graceEnd, this.deadline)) return DrainState.DRAIN_STATE_GRACE;
    this.graceEnd = Math.min(this.graceEnd, now);
    if (this.engine.live === 0) return (this.drained = DrainState.DRAIN_STATE_DRAINED);
    if (now < this.deadline) return DrainState.DRAIN_STATE_DRAINING;
    this.liveIds().forEach((id) => this.abort(id));
    return (this.drained = DrainState.DRAIN_STATE_TIMED_OUT);
  }

  private leaveReady(): void {
    if (this.state !== EngineState.ENGINE_STATE_READY) return;
    this.state = EngineState.ENGINE_STATE_DRAINING;
    this.onNotReady(false);
  }
}
