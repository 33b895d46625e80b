// The RPCs: each reads its message, asks the engine, and answers. Of what is left out, gRPC says that it is not
// implemented.
#pragma once

#include <google/protobuf/util/message_differencer.h>

#include "engine.h"
#include "enginewire/v1/discovery_service.grpc.pb.h"
#include "enginewire/v1/engine_service.grpc.pb.h"
#include "failure.h"
#include "rules.h"

inline const char* const kSchemaDigest = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401";
constexpr Seconds kShutdownTimeout(30);
constexpr Seconds kPatience(0.005);
constexpr size_t kMostIds = 16384;  // Of one abort.

// Runs an RPC whose failures become its status.
template <typename Call>
grpc::Status answered(grpc::ServerContext& context, Call call) {
  try {
    call();
    return grpc::Status::OK;
  } catch (const Failure& failure) {
    return failure.to_status(context);
  }
}

// Sends `current` at once and after every change, until it is final or the caller goes.
template <typename Response, typename Current, typename IsFinal>
void watch(grpc::ServerContext& context, grpc::ServerWriter<Response>& writer, Seconds interval,
           Current current, IsFinal is_final) {
  Response last;
  for (bool is_first = true; !context.IsCancelled(); is_first = false) {
    const Response message = current();
    if (is_first || !google::protobuf::util::MessageDifferencer::Equals(message, last)) writer.Write(message);
    if (is_final(message)) return;
    last = message;
    const auto until = Clock::now() + interval;
    while (Clock::now() < until && !context.IsCancelled()) std::this_thread::sleep_for(kPatience);
  }
}

class DiscoveryRpcs final : public ew::DiscoveryService::Service {
 public:
  explicit DiscoveryRpcs(Engine& engine) : engine_(engine) {}

  grpc::Status GetEngineInfo(grpc::ServerContext*, const ew::GetEngineInfoRequest*,
                             ew::GetEngineInfoResponse* info) override {
    auto& config = *info->mutable_config();
    config.set_model(kModel);
    config.set_context_length(kContextLength);
    config.set_max_num_seqs(kMaxRunning);
    config.set_vocab_size(kVocabSize);
    config.add_eos_token_ids(kEos);
    config.set_role(ew::ENGINE_ROLE_AGGREGATED);
    auto& capabilities = *config.mutable_capabilities();
    capabilities.set_cleanup(true);
    capabilities.set_watch_load(true);
    auto& sampling = *capabilities.mutable_default_sampling();
    sampling.set_temperature(1);
    sampling.set_top_p(1);
    sampling.set_repetition_penalty(1);
    config.mutable_limits()->set_max_request_bytes(4 << 20);
    config.mutable_limits()->set_max_num_queued_reqs(kMaxWaiting);
    config.mutable_limits()->set_min_keepalive_interval_ms(1000);
    info->set_engine_name("enginewire-example-cpp");
    info->set_engine_version("1");
    info->set_instance_id(engine_.lifetime_id);
    info->set_engine_lifetime_id(engine_.lifetime_id);
    info->set_contract_revision(kRevision);
    info->set_minimum_client_revision(kOldestRevision);
    info->set_maximum_client_revision(kRevision);
    info->set_schema_digest(kSchemaDigest);
    return grpc::Status::OK;
  }

  grpc::Status GetLoad(grpc::ServerContext*, const ew::GetLoadRequest*,
                       ew::GetLoadResponse* response) override {
    *response->mutable_load() = engine_.load();
    return grpc::Status::OK;
  }

  grpc::Status WatchLoad(grpc::ServerContext* context, const ew::WatchLoadRequest* request,
                         grpc::ServerWriter<ew::WatchLoadResponse>* writer) override {
    return answered(*context, [&] {
      const uint32_t interval = request->has_min_interval_ms() ? request->min_interval_ms() : 100;
      require(interval >= 10, "min_interval_ms", join("got ", interval, ", allowed from 10"));
      const auto current = [&] {
        ew::WatchLoadResponse response;
        *response.mutable_load() = engine_.load();
        return response;
      };
      watch(*context, *writer, Seconds(interval / 1e3), current, [](const auto&) { return false; });
    });
  }

 private:
  Engine& engine_;
};

class EngineRpcs final : public ew::EngineService::Service {
 public:
  explicit EngineRpcs(Engine& engine) : engine_(engine) {}

  grpc::Status Generate(grpc::ServerContext* context, const ew::GenerateRequest* request,
                        grpc::ServerWriter<ew::GenerateResponse>* writer) override {
    return answered(*context, [&] {
      check(*request);
      const auto sequence = std::make_shared<Sequence>(*request);
      engine_.admit(sequence);
      context->AddInitialMetadata("enginewire-lifetime-id", engine_.lifetime_id);
      writer->SendInitialMetadata();
      uint32_t position = 0;
      while (!context->IsCancelled()) {
        const auto [tokens, end] = engine_.read(*sequence, kPatience);
        if (tokens.empty() && !end) continue;
        ew::GenerateResponse response;
        response.set_request_id(sequence->id);
        if (position == 0) response.set_engine_lifetime_id(engine_.lifetime_id);
        auto& output = *response.mutable_output();
        output.mutable_token_ids()->Add(tokens.begin(), tokens.end());
        output.set_first_output_position(position);
        position += tokens.size();
        if (end) finish(output, end, sequence->prompt_tokens, position);
        if (!writer->Write(response) || end) break;
      }
      // Also after a deadline and a lost connection.
      engine_.remove(sequence);
    });
  }

  grpc::Status Abort(grpc::ServerContext* context, const ew::AbortRequest* request,
                     ew::AbortResponse* response) override {
    return answered(*context, [&] {
      const std::vector<std::string> named(request->request_ids().begin(), request->request_ids().end());
      require(request->all() == named.empty(), "request_ids", "exactly one of ids and all is needed");
      require(named.size() <= kMostIds, "request_ids", join("too many for one answer, allowed ", kMostIds));
      for (const std::string& id : request->all() ? engine_.live_ids() : named) {
        auto& result = *response->add_results();
        result.set_request_id(id);
        result.set_outcome(engine_.abort(id));
      }
    });
  }

  grpc::Status Drain(grpc::ServerContext* context, const ew::DrainRequest* request,
                     grpc::ServerWriter<ew::DrainResponse>* writer) override {
    return answered(*context, [&] {
      engine_.drain(request->has_deadline() ? seconds("deadline", request->deadline()) : kShutdownTimeout,
                    seconds("admission_grace", request->admission_grace()));
      watch(*context, *writer, Seconds(0.01), [&] { return engine_.progress(); },
            [](const auto& progress) { return progress.state() > ew::DRAIN_STATE_DRAINING; });
    });
  }

  grpc::Status Cleanup(grpc::ServerContext*, const ew::CleanupRequest* request,
                       ew::CleanupResponse* response) override {
    response->set_already_clean(engine_.cleanup(request->abort_in_flight()));
    return grpc::Status::OK;
  }

 private:
  static void finish(ew::LLMEngineOutput& output, ew::FinishReason end, uint32_t prompt, uint32_t completion) {
    output.set_finish_reason(end);
    if (end == ew::FINISH_REASON_STOP)
      output.mutable_stop_match()->set_token_id(output.token_ids(output.token_ids_size() - 1));
    auto& usage = *output.mutable_completion_usage();
    usage.set_prompt_tokens(prompt);
    usage.set_completion_tokens(completion);
    usage.set_total_tokens(prompt + completion);
  }

  static Seconds seconds(const char* field, const google::protobuf::Duration& duration) {
    const Seconds value(duration.seconds() + duration.nanos() / 1e9);
    require(value >= Seconds::zero(), field, "must not be negative");
    return value;
  }

  Engine& engine_;
};
