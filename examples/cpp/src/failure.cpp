#include "failure.h"

#include "google/rpc/error_details.pb.h"

using namespace enginewire::v1;
using grpc::StatusCode;

namespace {

StatusCode code_of(ErrorReason reason) {
  switch (reason) {
    case ERROR_REASON_INVALID_REQUEST:
    case ERROR_REASON_CONTEXT_EXCEEDED: return StatusCode::INVALID_ARGUMENT;
    case ERROR_REASON_UNSUPPORTED: return StatusCode::UNIMPLEMENTED;
    case ERROR_REASON_MODEL_NOT_FOUND: return StatusCode::NOT_FOUND;
    case ERROR_REASON_DUPLICATE_ID: return StatusCode::ALREADY_EXISTS;
    case ERROR_REASON_QUEUE_FULL: return StatusCode::RESOURCE_EXHAUSTED;
    case ERROR_REASON_ROLE_MISMATCH:
    case ERROR_REASON_REVISION_MISMATCH: return StatusCode::FAILED_PRECONDITION;
    case ERROR_REASON_DRAINING:
    case ERROR_REASON_ENGINE_DEAD: return StatusCode::UNAVAILABLE;
    case ERROR_REASON_CANCELLED: return StatusCode::CANCELLED;
    default: return StatusCode::INTERNAL;
  }
}

}  // namespace

Failure::Failure(ErrorReason reason, std::string field, const std::string& text,
                 std::map<std::string, std::string> facts)
    : reason(reason),
      field(std::move(field)),
      message(this->field.empty() ? text : this->field + ": " + text),
      facts(std::move(facts)) {}

grpc::Status Failure::to_status(grpc::ServerContext& context) const {
  const StatusCode code = code_of(reason);
  const bool retryable = code == StatusCode::UNAVAILABLE || reason == ERROR_REASON_QUEUE_FULL;
  ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_field(field);
  detail.set_retryable(retryable);
  detail.mutable_metadata()->insert(facts.begin(), facts.end());
  if (retryable) detail.mutable_retry_after()->set_seconds(1);
  google::rpc::ErrorInfo info;
  info.set_reason(ErrorReason_Name(reason).substr(std::string("ERROR_REASON_").size()));
  info.set_domain("enginewire");
  info.mutable_metadata()->insert(facts.begin(), facts.end());

  Status status;
  status.set_code(code);
  status.set_message(message);
  status.add_details()->PackFrom(detail);
  status.add_details()->PackFrom(info);
  if (!field.empty()) {
    google::rpc::BadRequest bad;
    auto* violation = bad.add_field_violations();
    violation->set_field(field);
    violation->set_description(message);
    status.add_details()->PackFrom(bad);
  }
  if (retryable) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(1);
    status.add_details()->PackFrom(retry);
    context.AddTrailingMetadata("grpc-retry-pushback-ms", "1000");
  }
  return {code, message, status.SerializeAsString()};
}
