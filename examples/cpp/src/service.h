// The RPCs: thin, each reads its message, asks the lifecycle, and answers.
#pragma once

#include "enginewire/v1/discovery_service.grpc.pb.h"
#include "enginewire/v1/engine_service.grpc.pb.h"
#include "lifecycle.h"

template <typename Message>
using Writer = grpc::ServerWriter<Message>;

class Discovery final : public enginewire::v1::DiscoveryService::Service {
 public:
  explicit Discovery(Lifecycle& life) : life_(life) {}
  grpc::Status GetEngineInfo(grpc::ServerContext*, const enginewire::v1::GetEngineInfoRequest*,
                             enginewire::v1::GetEngineInfoResponse*) override;
  grpc::Status GetLoad(grpc::ServerContext*, const enginewire::v1::GetLoadRequest*,
                       enginewire::v1::GetLoadResponse*) override;
  grpc::Status WatchLoad(grpc::ServerContext*, const enginewire::v1::WatchLoadRequest*,
                         Writer<enginewire::v1::WatchLoadResponse>*) override;
  grpc::Status GetTokenizer(grpc::ServerContext*, const enginewire::v1::GetTokenizerRequest*,
                            Writer<enginewire::v1::GetTokenizerResponse>*) override;

 private:
  Lifecycle& life_;
};

class EngineRpcs final : public enginewire::v1::EngineService::Service {
 public:
  explicit EngineRpcs(Lifecycle& life) : life_(life) {}
  grpc::Status Generate(grpc::ServerContext*, const enginewire::v1::GenerateRequest*,
                        Writer<enginewire::v1::GenerateResponse>*) override;
  grpc::Status Abort(grpc::ServerContext*, const enginewire::v1::AbortRequest*,
                     enginewire::v1::AbortResponse*) override;
  grpc::Status Drain(grpc::ServerContext*, const enginewire::v1::DrainRequest*,
                     Writer<enginewire::v1::DrainResponse>*) override;
  grpc::Status Cleanup(grpc::ServerContext*, const enginewire::v1::CleanupRequest*,
                       enginewire::v1::CleanupResponse*) override;

 private:
  Lifecycle& life_;
};
