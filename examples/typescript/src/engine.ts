// The engine: a queue, eight slots, and one token per running sequence and step. The next token is a hash of
// prompt and position. Knows nothing about gRPC; whoever submits a sequence gets its tokens through the callbacks.

export const VOCAB_SIZE = 1000;
export const EOS = 2;
export const CONTEXT_LENGTH = 4096;
export const MAX_RUNNING = 8;
export const MAX_WAITING = 256;
const FIRST_PLAIN_TOKEN = 3;
const STEP_MS = 4;

export type End = { why: "EOS" | "STOP" | "LENGTH" | "CANCELLED"; token?: number };

export interface Sequence {
  prompt: number[];
  maxTokens: number;
  minTokens: number;
  visibleStops: Set<number>;
  hiddenStops: Set<number>;
  generated: number;
  /** One new token, or the end, or both. Nothing follows an end. */
  output(token: number | undefined, end: End | undefined): void;
}

/** FNV-1a over the prompt, then murmur's finalizer over hash and position. */
export function nextToken(promptHash: number, position: number): number {
  let hash = (promptHash + Math.imul(position, 0x9e3779b9)) >>> 0;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return FIRST_PLAIN_TOKEN + (((hash ^ (hash >>> 16)) >>> 0) % (VOCAB_SIZE - FIRST_PLAIN_TOKEN));
}

export function hashOf(prompt: number[]): number {
  return prompt.reduce((hash, id) => Math.imul(hash ^ id, 16777619) >>> 0, 2166136261);
}

export class Engine {
  steps = 0n;
  tokensGenerated = 0n;
  finished = 0n;
  private hashes = new Map<Sequence, number>();
  running = new Set<Sequence>();
  waiting = new Set<Sequence>();

  constructor() {
    setInterval(() => this.step(), STEP_MS).unref();
  }

  get live(): number {
    return this.running.size + this.waiting.size;
  }

  submit(sequence: Sequence): void {
    this.waiting.add(sequence);
    this.hashes.set(sequence, hashOf(sequence.prompt));
  }

  /** Frees what the sequence held; without an `end` nobody is told. */
  remove(sequence: Sequence, end?: End, token?: number): void {
    if (!this.hashes.delete(sequence)) return;
    this.running.delete(sequence);
    this.waiting.delete(sequence);
    this.finished += 1n;
    if (end) sequence.output(token, end);
  }

  private step(): void {
    for (const sequence of this.waiting) {
      if (this.running.size >= MAX_RUNNING) break;
      this.waiting.delete(sequence);
      this.running.add(sequence);
    }
    if (this.running.size > 0) this.steps += 1n;
    for (const sequence of [...this.running]) {
      const token = nextToken(this.hashes.get(sequence)!, sequence.generated);
      sequence.generated += 1;
      this.tokensGenerated += 1n;
      const end = endOf(sequence, token);
      if (end) this.remove(sequence, end, token);
      else sequence.output(token, undefined);
    }
  }
}

/** Why `token`, the newest of its sequence, is the last one. Hidden stops win over visible ones. */
function endOf(sequence: Sequence, token: number): End | undefined {
  if (sequence.generated >= sequence.minTokens) {
    if (sequence.hiddenStops.has(token)) return { why: "EOS" };
    if (sequence.visibleStops.has(token)) return { why: "STOP", token };
  }
  return sequence.generated >= sequence.maxTokens ? { why: "LENGTH" } : undefined;
}
