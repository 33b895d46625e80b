// Failures and how they travel: a gRPC status whose details hold an ErrorDetail and google.rpc's messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include <exception>
#include <map>
#include <sstream>

#include "enginewire/v1/error.pb.h"
#include "google/rpc/error_details.pb.h"

namespace enginewire {

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

// Why a call is refused. The field is empty when no single one is at fault.
struct Failure : std::exception {
  Failure(v1::ErrorReason reason, std::string field, std::string text,
          std::map<std::string, std::string> facts = {})
      : reason(reason), field(std::move(field)), text(std::move(text)), facts(std::move(facts)) {}

  grpc::StatusCode code() const {
    switch (reason) {
      case v1::ERROR_REASON_INVALID_REQUEST:
      case v1::ERROR_REASON_CONTEXT_EXCEEDED: return grpc::StatusCode::INVALID_ARGUMENT;
      case v1::ERROR_REASON_UNSUPPORTED: return grpc::StatusCode::UNIMPLEMENTED;
      case v1::ERROR_REASON_MODEL_NOT_FOUND: return grpc::StatusCode::NOT_FOUND;
      case v1::ERROR_REASON_DUPLICATE_ID:
      case v1::ERROR_REASON_ADAPTER_EXISTS: return grpc::StatusCode::ALREADY_EXISTS;
      case v1::ERROR_REASON_QUEUE_FULL:
      case v1::ERROR_REASON_KV_EXHAUSTED:
      case v1::ERROR_REASON_TOO_LARGE:
      case v1::ERROR_REASON_SLOW_CONSUMER:
      case v1::ERROR_REASON_ADAPTER_LIMIT: return grpc::StatusCode::RESOURCE_EXHAUSTED;
      case v1::ERROR_REASON_ROLE_MISMATCH:
      case v1::ERROR_REASON_REVISION_MISMATCH:
      case v1::ERROR_REASON_HANDOFF_INVALID:
      case v1::ERROR_REASON_ADAPTER_IN_USE: return grpc::StatusCode::FAILED_PRECONDITION;
      case v1::ERROR_REASON_DRAINING:
      case v1::ERROR_REASON_NOT_STARTED:
      case v1::ERROR_REASON_ENGINE_DEAD:
      case v1::ERROR_REASON_STUCK: return grpc::StatusCode::UNAVAILABLE;
      case v1::ERROR_REASON_DEADLINE_EXCEEDED: return grpc::StatusCode::DEADLINE_EXCEEDED;
      case v1::ERROR_REASON_AUTH: return grpc::StatusCode::UNAUTHENTICATED;
      case v1::ERROR_REASON_CANCELLED: return grpc::StatusCode::CANCELLED;
      default: return grpc::StatusCode::INTERNAL;
    }
  }

  // The same request may succeed elsewhere or later.
  bool is_retryable() const {
    return code() == grpc::StatusCode::UNAVAILABLE || reason == v1::ERROR_REASON_QUEUE_FULL;
  }

  grpc::Status to_status() const {
    const std::string message = field.empty() ? text : field + ": " + text;
    v1::ErrorDetail detail;
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    google::rpc::RetryInfo retry;
    detail.set_reason(reason);
    detail.set_field(field);
    detail.set_retryable(is_retryable());
    detail.mutable_metadata()->insert(facts.begin(), facts.end());
    if (is_retryable()) detail.mutable_retry_after()->set_seconds(1);
    info.set_reason(v1::ErrorReason_Name(reason).substr(std::string("ERROR_REASON_").size()));
    info.set_domain("enginewire");
    info.mutable_metadata()->insert(facts.begin(), facts.end());
    bad.add_field_violations()->set_field(field);
    bad.mutable_field_violations(0)->set_description(message);
    retry.mutable_retry_delay()->set_seconds(1);

    v1::Status status;
    status.set_code(code());
    status.set_message(message);
    status.add_details()->PackFrom(detail);
    status.add_details()->PackFrom(info);
    if (!field.empty()) status.add_details()->PackFrom(bad);
    if (is_retryable()) status.add_details()->PackFrom(retry);
    return {code(), message, status.SerializeAsString()};
  }

  v1::ErrorReason reason;
  std::string field, text;
  std::map<std::string, std::string> facts;
};

// The failure of a value that no engine may accept; the parts make its text.
template <typename... Parts>
Failure invalid(const std::string& field, const Parts&... parts) {
  return {v1::ERROR_REASON_INVALID_REQUEST, field, join(parts...)};
}

inline Failure queue_full(size_t waiting, size_t limit) {
  return {v1::ERROR_REASON_QUEUE_FULL, "", "the queue is full",
          {{"queue_depth", std::to_string(waiting)}, {"limit", std::to_string(limit)}}};
}

// Runs an RPC: a Failure that it throws becomes its status.
template <typename Call>
grpc::Status answered(grpc::ServerContext& context, Call call) {
  try {
    call();
    return grpc::Status::OK;
  } catch (const Failure& failure) {
    if (failure.is_retryable()) context.AddTrailingMetadata("grpc-retry-pushback-ms", "1000");
    return failure.to_status();
  }
}

}  // namespace enginewire
