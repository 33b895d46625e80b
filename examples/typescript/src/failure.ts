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

export class Failure extends Error {
  constructor(
    readonly reason: keyof typeof CODES,
    readonly field: string,
    text: string,
    readonly facts: { [key: string]: string } = {},
  ) {
    super(field ? `${field}: ${text}` : text);
  }

  /** What grpc-js sends as status and trailers. */
  toServiceError(): { code: status; details: string; metadata: Metadata } {
    const { reason, field, message, facts } = this;
    const code = CODES[reason];
    const retryable = code === status.UNAVAILABLE || reason === "QUEUE_FULL";
    const after = retryable ? { seconds: 1n, nanos: 0 } : undefined;
    const name = `ERROR_REASON_${reason}` as const;
    const detail = { reason: ErrorReason[name], field, retryable, retry_after: after, metadata: facts };
    const violations = [{ field, description: message }];
    const details = [
      any("enginewire.v1.ErrorDetail", ErrorDetail.encode(ErrorDetail.fromPartial(detail))),
      any("google.rpc.ErrorInfo", ErrorInfo.encode({ reason, domain: "enginewire", metadata: facts })),
    ];
    if (field) details.push(any("google.rpc.BadRequest", BadRequest.encode({ field_violations: violations })));
    if (after) details.push(any("google.rpc.RetryInfo", RetryInfo.encode({ retry_delay: after })));
    const metadata = new Metadata();
    if (after) metadata.set("grpc-retry-pushback-ms", "1000");
    const whole = Status.encode({ code, message, details }).finish();
    metadata.set("grpc-status-details-bin", Buffer.from(whole));
    return { code, details: message, metadata };
  }
}

function any(name: string, writer: { finish(): Uint8Array }) {
  return { type_url: `type.googleapis.com/${name}`, value: Buffer.from(writer.finish()) };
}
