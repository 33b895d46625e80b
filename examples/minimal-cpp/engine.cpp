// The smallest engine of the contract: `build/engine 127.0.0.1:50051`, or `unix:/run/engine.sock`.
// Its model is a hash: `next_token` has it where a real engine calls its own.

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include "enginewire/answer.h"
#include "enginewire/rules.h"
#include "enginewire/server.h"
#include "enginewire/watch.h"

namespace ew = enginewire;
namespace pb = enginewire::v1;
using ew::Clock, ew::Failure;
using grpc::ServerContext, grpc::ServerWriter, grpc::Status;

constexpr uint32_t kSlots = 8, kQueue = 64, kVocabulary = 1000, kEos = 2;
constexpr std::chrono::milliseconds kStep(5);

// What the engine says about itself, which is also what its requests are held against.
pb::EngineConfig describe() {
  pb::EngineConfig config;
  config.set_model("hash");
  config.set_role(pb::ENGINE_ROLE_AGGREGATED);
  config.set_context_length(4096);
  config.set_vocab_size(kVocabulary);
  config.add_eos_token_ids(kEos);
  config.set_max_num_seqs(kSlots);
  config.mutable_limits()->set_max_num_queued_reqs(kQueue);
  auto& sampling = *config.mutable_capabilities()->mutable_default_sampling();
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  return config;
}

uint32_t next_token(const pb::PreprocessedRequest& request, uint32_t done) {
  uint32_t hash = 2166136261u ^ done * 0x9e3779b9u;
  for (uint32_t token : request.token_ids()) hash = (hash ^ token) * 16777619u;
  return 3 + (hash ^ hash >> 15) % (kVocabulary - 3);
}

// The requests that are live, in the order of their arrival: the first ones run, the others wait.
class Engine final : public pb::EngineService::Service, public pb::DiscoveryService::Service {
 public:
  explicit Engine(ew::Health& health) : health_(health) {}

  Status Generate(ServerContext* context, const pb::GenerateRequest* generate,
                  ServerWriter<pb::GenerateResponse>* writer) override {
    return ew::answered(*context, [&] {
      ew::check(*generate, config_);
      ew::Answer answer(*generate, config_);
      admit(generate);
      writer->SendInitialMetadata();
      for (auto why = pb::FINISH_REASON_UNSPECIFIED; !why && !context->IsCancelled();) {
        std::this_thread::sleep_for(kStep);
        progress();  // A drain ends in time although nobody watches it.
        const ptrdiff_t place = place_of(generate);
        if (place >= kSlots) continue;
        std::vector<uint32_t> tokens;
        if (place >= 0) tokens.push_back(next_token(generate->request(), answer.generated()));
        why = place < 0 ? pb::FINISH_REASON_CANCELLED : answer.end_at(tokens.back());
        if (why && !remove(generate)) why = pb::FINISH_REASON_CANCELLED;  // Its abort came first.
        writer->Write(answer.response(tokens, why));
      }
      remove(generate);  // Also after a deadline and a lost connection.
    });
  }

  Status Abort(ServerContext* context, const pb::AbortRequest* request, pb::AbortResponse* response) override {
    return ew::answered(*context, [&] {
      ew::check(*request);
      const std::lock_guard lock(mutex_);
      std::vector<std::string> ids(request->request_ids().begin(), request->request_ids().end());
      if (request->all())
        for (const auto* generate : live_) ids.push_back(generate->request_id());
      for (const auto& id : ids) {
        const auto found = find(id);
        auto& result = *response->add_results();
        result.set_request_id(id);
        result.set_outcome(found == live_.end() ? pb::ABORT_OUTCOME_UNKNOWN : pb::ABORT_OUTCOME_ABORTED);
        if (found != live_.end()) live_.erase(found);
      }
    });
  }

  Status Drain(ServerContext* context, const pb::DrainRequest* request,
               ServerWriter<pb::DrainResponse>* writer) override {
    return ew::answered(*context, [&] {
      begin_drain(request->has_deadline() ? ew::duration("deadline", request->deadline()) : ew::kShutdownTimeout);
      ew::watch(*context, *writer, kStep, [&] { return progress(); });
    });
  }

  Status GetEngineInfo(ServerContext*, const pb::GetEngineInfoRequest*, pb::GetEngineInfoResponse* info) override {
    *info = ew::info("minimal-cpp", config_);
    return Status::OK;
  }

  Status GetLoad(ServerContext*, const pb::GetLoadRequest*, pb::GetLoadResponse* response) override {
    const std::lock_guard lock(mutex_);
    auto& load = *response->mutable_load();
    load.set_state(is_draining() ? pb::ENGINE_STATE_DRAINING : pb::ENGINE_STATE_READY);
    load.set_engine_lifetime_id(ew::lifetime_id());
    load.set_running(running());
    load.set_waiting(waiting());
    return Status::OK;
  }

  // Begins a drain or joins it: of several deadlines the earliest counts.
  void begin_drain(Clock::duration limit) {
    const std::lock_guard lock(mutex_);
    deadline_ = std::min(deadline_, Clock::now() + limit);
    health_.set(pb::ENGINE_STATE_DRAINING);
  }

  // Ends a drain that has begun when nothing is live or its time is over.
  pb::DrainResponse progress() {
    const std::lock_guard lock(mutex_);
    if (!drained_ && is_draining() && live_.empty()) drained_ = pb::DRAIN_STATE_DRAINED;
    if (!drained_ && Clock::now() >= deadline_) drained_ = pb::DRAIN_STATE_TIMED_OUT;
    if (drained_) live_.clear();
    pb::DrainResponse progress;
    progress.set_state(drained_ ? drained_ : pb::DRAIN_STATE_DRAINING);
    progress.set_running(running());
    progress.set_waiting(waiting());
    return progress;
  }

 private:
  void admit(const pb::GenerateRequest* generate) {
    const std::lock_guard lock(mutex_);
    if (is_draining()) throw Failure(pb::ERROR_REASON_DRAINING, "", "the server is draining");
    if (find(generate->request_id()) != live_.end())
      throw Failure(pb::ERROR_REASON_DUPLICATE_ID, "request_id", "is live");
    if (waiting() >= kQueue) throw ew::queue_full(waiting(), kQueue);
    live_.push_back(generate);
  }

  // How many live requests are before this one; -1 when it has ended.
  ptrdiff_t place_of(const pb::GenerateRequest* generate) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(live_.begin(), live_.end(), generate);
    return found == live_.end() ? -1 : found - live_.begin();
  }

  // Takes a request out of the engine; false where that had happened.
  bool remove(const pb::GenerateRequest* generate) {
    const std::lock_guard lock(mutex_);
    const size_t count = live_.size();
    live_.erase(std::remove(live_.begin(), live_.end(), generate), live_.end());
    return live_.size() < count;
  }

  std::vector<const pb::GenerateRequest*>::iterator find(const std::string& id) {
    return std::find_if(live_.begin(), live_.end(), [&](const auto* other) { return other->request_id() == id; });
  }

  size_t running() const { return std::min<size_t>(live_.size(), kSlots); }
  size_t waiting() const { return live_.size() - running(); }
  bool is_draining() const { return deadline_ != Clock::time_point::max(); }

  ew::Health& health_;
  const pb::EngineConfig config_ = describe();
  std::mutex mutex_;
  std::vector<const pb::GenerateRequest*> live_;
  Clock::time_point deadline_ = Clock::time_point::max();
  pb::DrainState drained_ = pb::DRAIN_STATE_UNSPECIFIED;
};

int main(int argc, char** argv) {
  ew::Server server;
  Engine engine(server.health);
  pb::EngineService::Service& generation = engine;
  pb::DiscoveryService::Service& discovery = engine;
  return server.run(argc == 2 ? argv[1] : "", engine, {&generation, &discovery});
}
