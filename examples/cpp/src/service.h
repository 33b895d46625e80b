// The RPCs: each reads its message, asks the engine, and answers. Of what is left out, gRPC says that it is not
// implemented.
#pragma once

#include "engine.h"
#include "enginewire/rules.h"
#include "enginewire/watch.h"

constexpr std::chrono::milliseconds kPatience(5);

class DiscoveryRpcs final : public pb::DiscoveryService::Service {
 public:
  explicit DiscoveryRpcs(Engine& engine) : engine_(engine) {}

  grpc::Status GetEngineInfo(grpc::ServerContext*, const pb::GetEngineInfoRequest*,
                             pb::GetEngineInfoResponse* info) override {
    *info = ew::info("enginewire-example-cpp", engine_.config);
    return grpc::Status::OK;
  }

  grpc::Status GetLoad(grpc::ServerContext*, const pb::GetLoadRequest*,
                       pb::GetLoadResponse* response) override {
    *response->mutable_load() = engine_.load();
    return grpc::Status::OK;
  }

  grpc::Status WatchLoad(grpc::ServerContext* context, const pb::WatchLoadRequest* request,
                         grpc::ServerWriter<pb::WatchLoadResponse>* writer) override {
    return ew::answered(*context, [&] {
      const uint32_t interval = request->has_min_interval_ms() ? request->min_interval_ms() : 100;
      if (interval < 10) throw ew::invalid("min_interval_ms", "got ", interval, ", allowed from 10");
      const auto current = [&] {
        pb::WatchLoadResponse response;
        *response.mutable_load() = engine_.load();
        return response;
      };
      ew::watch(*context, *writer, std::chrono::milliseconds(interval), current);
    });
  }

 private:
  Engine& engine_;
};

class EngineRpcs final : public pb::EngineService::Service {
 public:
  explicit EngineRpcs(Engine& engine) : engine_(engine) {}

  grpc::Status Generate(grpc::ServerContext* context, const pb::GenerateRequest* request,
                        grpc::ServerWriter<pb::GenerateResponse>* writer) override {
    return ew::answered(*context, [&] {
      ew::check(*request, engine_.config);
      const auto sequence = std::make_shared<Sequence>(*request, engine_.config);
      engine_.admit(sequence);
      context->AddInitialMetadata("enginewire-lifetime-id", ew::lifetime_id());
      writer->SendInitialMetadata();
      while (!context->IsCancelled()) {
        const auto [tokens, end] = engine_.read(*sequence, kPatience);
        if (tokens.empty() && !end) continue;
        if (!writer->Write(sequence->answer.response(tokens, end)) || end) break;
      }
      // Also after a deadline and a lost connection.
      engine_.remove(sequence);
    });
  }

  grpc::Status Abort(grpc::ServerContext* context, const pb::AbortRequest* request,
                     pb::AbortResponse* response) override {
    return ew::answered(*context, [&] {
      ew::check(*request);
      const std::vector<std::string> named(request->request_ids().begin(), request->request_ids().end());
      for (const std::string& id : request->all() ? engine_.live_ids() : named) {
        auto& result = *response->add_results();
        result.set_request_id(id);
        result.set_outcome(engine_.abort(id));
      }
    });
  }

  grpc::Status Drain(grpc::ServerContext* context, const pb::DrainRequest* request,
                     grpc::ServerWriter<pb::DrainResponse>* writer) override {
    return ew::answered(*context, [&] {
      engine_.begin_drain(
          request->has_deadline() ? ew::duration("deadline", request->deadline()) : ew::kShutdownTimeout,
          ew::duration("admission_grace", request->admission_grace()));
      ew::watch(*context, *writer, std::chrono::milliseconds(10), [&] { return engine_.progress(); });
    });
  }

  grpc::Status Cleanup(grpc::ServerContext*, const pb::CleanupRequest* request,
                       pb::CleanupResponse* response) override {
    response->set_already_clean(engine_.cleanup(request->abort_in_flight()));
    return grpc::Status::OK;
  }

 private:
  Engine& engine_;
};
