// Failures and how they travel: a gRPC status whose details hold an ErrorDetail and google.rpc's messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include <exception>
#include <map>
#include <string>

#include "enginewire/v1/error.pb.h"
#include "google/rpc/error_details.pb.h"

namespace ew = enginewire::v1;

struct Failure : std::exception {
  Failure(ew::ErrorReason reason, std::string field, const std::string& text,
          std::map<std::string, std::string> facts = {})
      : reason(reason), field(std::move(field)), text(text), facts(std::move(facts)) {}

  grpc::StatusCode code() const {
    switch (reason) {
      case ew::ERROR_REASON_INVALID_REQUEST:
      case ew::ERROR_REASON_CONTEXT_EXCEEDED: return grpc::StatusCode::INVALID_ARGUMENT;
      case ew::ERROR_REASON_UNSUPPORTED: return grpc::StatusCode::UNIMPLEMENTED;
      case ew::ERROR_REASON_MODEL_NOT_FOUND: return grpc::StatusCode::NOT_FOUND;
      case ew::ERROR_REASON_DUPLICATE_ID: return grpc::StatusCode::ALREADY_EXISTS;
      case ew::ERROR_REASON_QUEUE_FULL: return grpc::StatusCode::RESOURCE_EXHAUSTED;
      case ew::ERROR_REASON_ROLE_MISMATCH:
      case ew::ERROR_REASON_REVISION_MISMATCH: return grpc::StatusCode::FAILED_PRECONDITION;
      case ew::ERROR_REASON_DRAINING:
      case ew::ERROR_REASON_ENGINE_DEAD: return grpc::StatusCode::UNAVAILABLE;
      case ew::ERROR_REASON_CANCELLED: return grpc::StatusCode::CANCELLED;
      default: return grpc::StatusCode::INTERNAL;
    }
  }

  grpc::Status to_status(grpc::ServerContext& context) const {
    const std::string message = field.empty() ? text : field + ": " + text;
    const bool retryable = code() == grpc::StatusCode::UNAVAILABLE || reason == ew::ERROR_REASON_QUEUE_FULL;
    ew::ErrorDetail detail;
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    google::rpc::RetryInfo retry;
    detail.set_reason(reason);
    detail.set_field(field);
    detail.set_retryable(retryable);
    detail.mutable_metadata()->insert(facts.begin(), facts.end());
    if (retryable) detail.mutable_retry_after()->set_seconds(1);
    info.set_reason(ew::ErrorReason_Name(reason).substr(std::string("ERROR_REASON_").size()));
    info.set_domain("enginewire");
    info.mutable_metadata()->insert(facts.begin(), facts.end());
    bad.add_field_violations()->set_field(field);
    bad.mutable_field_violations(0)->set_description(message);
    retry.mutable_retry_delay()->set_seconds(1);

    ew::Status status;
    status.set_code(code());
    status.set_message(message);
    status.add_details()->PackFrom(detail);
    status.add_details()->PackFrom(info);
    if (!field.empty()) status.add_details()->PackFrom(bad);
    if (retryable) status.add_details()->PackFrom(retry);
    if (retryable) context.AddTrailingMetadata("grpc-retry-pushback-ms", "1000");
    return {code(), message, status.SerializeAsString()};
  }

  ew::ErrorReason reason;
  std::string field, text;
  std::map<std::string, std::string> facts;
};
