// Failures and how they travel: a gRPC status whose details hold an ErrorDetail and google.rpc's messages.

import { Metadata, status } from "@grpc/grpc-js";
import { ErrorDetail, ErrorReason, Status } from "../gen/enginewire/v1/error.js";
import { BadRequest, ErrorInfo, RetryInfo } from "../gen/google/rpc/error_details.js";

const CODES = {
  INVALID_REQUEST: status.INVALID_ARGUMENT,
  CONTEXT_EXCEEDED: status.INVALID_ARGUMENT,
  UNSUPPORTED: status.UNIMPLEMENTED,
  MODEL_NOT_FOUND: status.NOT_FOUND,
  DUPLICATE_ID: status.ALREADY_EXISTS,
  QUEUE_FULL: status.RESOURCE_EXHAUSTED,
  ROLE_MISMATCH: status.FAILED_PRECONDITION,
  REVISION_MISMATCH: status.FAILED_PRECONDITION,
  DRAINING: status.UNAVAILABLE,
  ENGINE_DEAD: status.UNAVAILABLE,
  CANCELLED: status.CANCELLED,
};
export type Reason = keyof typeof CODES;
const RETRY_AFTER = { seconds: 1n, nanos: 0 };

export class Failure extends Error {
  constructor(
    readonly reason: Reason,
    readonly field: string,
    message: string,
    readonly facts: { [key: string]: string } = {},
  ) {
    super(field ? `${field}: ${message}` : message);
  }

  /** What grpc-js sends as status and trailers. */
  toServiceError(): { code: status; details: string; metadata: Metadata } {
    const code = CODES[this.reason];
    const retryable = code === status.UNAVAILABLE || this.reason === "QUEUE_FULL";
    const detail = ErrorDetail.fromPartial({
      reason: ErrorReason[`ERROR_REASON_${this.reason}`],
      field: this.field,
      retryable,
      retry_after: retryable ? RETRY_AFTER : undefined,
      metadata: this.facts,
    });
    const info = ErrorInfo.fromPartial({ reason: this.reason, domain: "enginewire", metadata: this.facts });
    const details = [
      any("enginewire.v1.ErrorDetail", ErrorDetail.encode(detail)),
      any("google.rpc.ErrorInfo", ErrorInfo.encode(info)),
    ];
    if (this.field) {
      const violation = { field: this.field, description: this.message };
      const bad = BadRequest.fromPartial({ field_violations: [violation] });
      details.push(any("google.rpc.BadRequest", BadRequest.encode(bad)));
    }
    const metadata = new Metadata();
    if (retryable) {
      details.push(any("google.rpc.RetryInfo", RetryInfo.encode({ retry_delay: RETRY_AFTER })));
      metadata.set("grpc-retry-pushback-ms", "1000");
    }
    const trailer = Status.encode({ code, message: this.message, details }).finish();
    metadata.set("grpc-status-details-bin", Buffer.from(trailer));
    return { code, details: this.message, metadata };
  }
}

function any(name: string, writer: { finish(): Uint8Array }) {
  return { type_url: `type.googleapis.com/${name}`, value: Buffer.from(writer.finish()) };
}
