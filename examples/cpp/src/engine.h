// The engine: eight slots, a queue, and one token per running request and step. The next token is a hash of
// prompt and position. Also what a server is doing: ready, draining, stopped. One lock for all of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <thread>

#include "enginewire/answer.h"
#include "enginewire/server.h"

namespace ew = enginewire;
namespace pb = enginewire::v1;
using ew::Clock;

constexpr uint32_t kVocabSize = 1000;
constexpr size_t kMaxRunning = 8;
constexpr size_t kMaxWaiting = 256;

// What the engine says about itself, which is also what its requests are held against.
inline pb::EngineConfig describe() {
  pb::EngineConfig config;
  config.set_model("hash");
  config.set_served_model_name("hash-in-cpp");
  config.set_context_length(4096);
  config.set_max_num_seqs(kMaxRunning);
  config.set_vocab_size(kVocabSize);
  config.add_eos_token_ids(2);
  config.set_role(pb::ENGINE_ROLE_AGGREGATED);
  auto& capabilities = *config.mutable_capabilities();
  capabilities.set_cleanup(true);
  capabilities.set_watch_load(true);
  auto& sampling = *capabilities.mutable_default_sampling();
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  config.mutable_limits()->set_max_prompt_tokens(4080);
  config.mutable_limits()->set_max_request_bytes(4 << 20);
  config.mutable_limits()->set_max_num_queued_reqs(kMaxWaiting);
  config.mutable_limits()->set_min_keepalive_interval_ms(ew::kMinKeepaliveMs);
  return config;
}

struct Sequence {
  Sequence(const pb::GenerateRequest& generate, const pb::EngineConfig& config)
      : id(generate.request_id()), prompt_tokens(generate.request().token_ids_size()), answer(generate, config) {
    for (uint32_t token : generate.request().token_ids()) hash = (hash ^ token) * 16777619u;
  }

  uint32_t next() const {
    uint32_t mixed = hash + answer.generated() * 0x9e3779b9u;
    mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bu;
    mixed = (mixed ^ (mixed >> 13)) * 0xc2b2ae35u;
    return 3 + (mixed ^ (mixed >> 16)) % (kVocabSize - 3);
  }

  const std::string id;
  const uint32_t prompt_tokens;
  ew::Answer answer;
  uint32_t hash = 2166136261u;
  // What the reader has not seen yet, and why the request has ended.
  std::vector<uint32_t> unread;
  pb::FinishReason end = pb::FINISH_REASON_UNSPECIFIED;
  std::condition_variable changed;
};
using SequencePtr = std::shared_ptr<Sequence>;

class Engine {
 public:
  explicit Engine(ew::Health& health) : health_(health), thread_([this] { run(); }) {}
  ~Engine() {
    is_over_ = true;
    thread_.join();
  }

  const pb::EngineConfig config = describe();

  // Accepts the request, or throws a Failure and nothing has happened.
  void admit(const SequencePtr& sequence) {
    Lock lock(mutex_);
    if (is_cleaning_) throw ew::Failure(pb::ERROR_REASON_ENGINE_DEAD, "", "the engine was cleaned up");
    if (is_closed()) throw ew::Failure(pb::ERROR_REASON_DRAINING, "", "the server is draining");
    if (find(sequence->id)) throw ew::Failure(pb::ERROR_REASON_DUPLICATE_ID, "request_id", "is live");
    if (recall(sequence->id) == pb::ABORT_OUTCOME_UNKNOWN && past_.erase(sequence->id))
      throw ew::Failure(pb::ERROR_REASON_CANCELLED, "request_id", "aborted before it arrived");
    if (waiting() >= kMaxWaiting) throw ew::queue_full(waiting(), kMaxWaiting);
    live_.push_back(sequence);
  }

  // What the reader has not seen yet, after waiting for it a moment.
  std::pair<std::vector<uint32_t>, pb::FinishReason> read(Sequence& sequence, Clock::duration patience) {
    Lock lock(mutex_);
    sequence.changed.wait_for(lock, patience, [&] { return sequence.end || !sequence.unread.empty(); });
    return {std::exchange(sequence.unread, {}), sequence.end};
  }

  // Ends a request whose reader has gone, if it is live.
  void remove(const SequencePtr& sequence) {
    Lock lock(mutex_);
    if (!sequence->end) end(sequence, pb::FINISH_REASON_CANCELLED);
  }

  pb::AbortOutcome abort(const std::string& id) {
    Lock lock(mutex_);
    if (const SequencePtr sequence = find(id)) {
      end(sequence, pb::FINISH_REASON_CANCELLED);
      return pb::ABORT_OUTCOME_ABORTED;
    }
    if (!recall(id)) remember(id, pb::ABORT_OUTCOME_UNKNOWN);
    return recall(id);
  }

  std::vector<std::string> live_ids() {
    Lock lock(mutex_);
    std::vector<std::string> ids;
    for (const auto& sequence : live_) ids.push_back(sequence->id);
    return ids;
  }

  pb::Load load() {
    Lock lock(mutex_);
    pb::Load load = counts_;
    load.set_running(live_.size() - waiting());
    load.set_waiting(waiting());
    for (size_t i = kMaxRunning; i < live_.size(); ++i)
      load.set_waiting_tokens(load.waiting_tokens() + live_[i]->prompt_tokens);
    load.set_state(state_);
    load.set_engine_lifetime_id(ew::lifetime_id());
    return load;
  }

  // Begins the drain or joins it. Of several deadlines the earliest wins; the grace is that of the first caller.
  void begin_drain(Clock::duration limit, Clock::duration grace = Clock::duration::zero()) {
    Lock lock(mutex_);
    deadline_ = std::min(deadline_, Clock::now() + limit);
    if (grace_end_ == Clock::time_point::max()) grace_end_ = Clock::now() + grace;
    if (state_ == pb::ENGINE_STATE_READY) enter(pb::ENGINE_STATE_DRAINING);
  }

  pb::DrainResponse progress() {
    Lock lock(mutex_);
    pb::DrainResponse response;
    response.set_state(drain_state());
    response.set_running(live_.size() - waiting());
    response.set_waiting(waiting());
    return response;
  }

  // True when an earlier call had cleaned up.
  bool cleanup(bool abort_in_flight) {
    Lock lock(mutex_);
    is_cleaning_ = true;
    if (state_ == pb::ENGINE_STATE_READY) enter(pb::ENGINE_STATE_DRAINING);
    if (abort_in_flight) abort_all();
    idle_.wait(lock, [this] { return live_.empty(); });
    const bool was_clean = state_ == pb::ENGINE_STATE_STOPPED;
    enter(pb::ENGINE_STATE_STOPPED);
    return was_clean;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Past {
    pb::AbortOutcome outcome;
    Clock::time_point since;
  };

  void run() {
    auto next = Clock::now();
    while (!is_over_) {
      std::this_thread::sleep_until(next += std::chrono::milliseconds(4));
      Lock lock(mutex_);
      step();
      drain_state();
    }
  }

  // The live requests are in the order of arrival: the first ones run, the others wait.
  void step() {
    const std::vector<SequencePtr> running(live_.begin(), live_.end() - waiting());
    if (!running.empty()) counts_.set_step(counts_.step() + 1);
    for (const auto& sequence : running) {
      const uint32_t token = sequence->next();
      counts_.set_tokens_generated(counts_.tokens_generated() + 1);
      sequence->unread.push_back(token);
      sequence->changed.notify_one();
      if (const auto why = sequence->answer.end_at(token)) end(sequence, why);
    }
  }

  void end(const SequencePtr& sequence, pb::FinishReason why) {
    live_.erase(std::find(live_.begin(), live_.end(), sequence));
    counts_.set_requests_finished(counts_.requests_finished() + 1);
    remember(sequence->id, pb::ABORT_OUTCOME_FINISHED);
    sequence->end = why;
    sequence->changed.notify_one();
    if (live_.empty()) idle_.notify_all();
  }

  void abort_all() {
    while (!live_.empty()) end(live_.back(), pb::FINISH_REASON_CANCELLED);
  }

  size_t waiting() const { return live_.size() - std::min(live_.size(), kMaxRunning); }

  SequencePtr find(const std::string& id) const {
    const auto found = std::find_if(live_.begin(), live_.end(), [&](const auto& s) { return s->id == id; });
    return found == live_.end() ? nullptr : *found;
  }

  // What the next abort of this id is told; an unknown id that arrives after its abort is refused.
  void remember(const std::string& id, pb::AbortOutcome outcome) {
    const auto oldest = Clock::now() - std::chrono::seconds(10);
    for (auto entry = past_.begin(); entry != past_.end();)
      entry = entry->second.since < oldest || past_.size() >= 4096 ? past_.erase(entry) : std::next(entry);
    past_[id] = {outcome, Clock::now()};
  }

  pb::AbortOutcome recall(const std::string& id) const {
    const auto found = past_.find(id);
    const bool is_fresh = found != past_.end() && Clock::now() - found->second.since < std::chrono::seconds(10);
    return is_fresh ? found->second.outcome : pb::ABORT_OUTCOME_UNSPECIFIED;
  }

  bool is_closed() const { return Clock::now() >= std::min(grace_end_, deadline_); }

  pb::DrainState drain_state() {
    if (drained_) return drained_;
    if (!is_closed()) return pb::DRAIN_STATE_GRACE;
    if (live_.empty()) return drained_ = pb::DRAIN_STATE_DRAINED;
    if (Clock::now() < deadline_) return pb::DRAIN_STATE_DRAINING;
    abort_all();
    return drained_ = pb::DRAIN_STATE_TIMED_OUT;
  }

  void enter(pb::EngineState state) { health_.set(state_ = state); }

  std::mutex mutex_;
  ew::Health& health_;
  pb::EngineState state_ = pb::ENGINE_STATE_READY;
  std::vector<SequencePtr> live_;
  std::condition_variable idle_;
  std::map<std::string, Past> past_;
  pb::Load counts_;
  bool is_cleaning_ = false;
  Clock::time_point grace_end_ = Clock::time_point::max(), deadline_ = Clock::time_point::max();
  pb::DrainState drained_ = pb::DRAIN_STATE_UNSPECIFIED;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};
