// Failures and how they travel: a gRPC status whose details hold an ErrorDetail and google.rpc's messages.
#pragma once

#include <grpcpp/grpcpp.h>

#include <exception>
#include <map>
#include <string>

#include "enginewire/v1/error.pb.h"

struct Failure : std::exception {
  Failure(enginewire::v1::ErrorReason reason, std::string field, const std::string& text,
          std::map<std::string, std::string> facts = {});
  grpc::Status to_status(grpc::ServerContext& context) const;

  enginewire::v1::ErrorReason reason;
  std::string field;
  std::string message;
  std::map<std::string, std::string> facts;
};
