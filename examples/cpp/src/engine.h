// The engine: eight slots, a queue, and one token per running request and step. The next token is a hash of
// prompt and position. Also what a server is doing: ready, draining, stopped. One lock for all of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "enginewire/v1/discovery_service.pb.h"
#include "enginewire/v1/engine_service.pb.h"
#include "failure.h"

constexpr uint32_t kVocabSize = 1000;
constexpr uint32_t kEos = 2;
constexpr uint32_t kContextLength = 4096;
constexpr size_t kMaxRunning = 8;
constexpr size_t kMaxWaiting = 256;

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Sequence {
  explicit Sequence(const ew::GenerateRequest& generate)
      : id(generate.request_id()), prompt_tokens(generate.request().token_ids_size()) {
    const auto& request = generate.request();
    const auto& stop = request.stop_conditions();
    for (uint32_t token : request.token_ids()) hash = (hash ^ token) * 16777619u;
    const uint32_t room = kContextLength - prompt_tokens;
    max_tokens = std::min(room, stop.has_max_tokens() ? stop.max_tokens() : request.is_probe() ? 1 : room);
    min_tokens = stop.min_tokens();
    visible_stops.insert(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
    visible_stops.insert(stop.stop_token_ids_visible().begin(), stop.stop_token_ids_visible().end());
    if (stop.ignore_eos()) return;
    hidden_stops.insert(stop.stop_token_ids_hidden().begin(), stop.stop_token_ids_hidden().end());
    hidden_stops.insert(request.eos_token_ids().begin(), request.eos_token_ids().end());
    if (request.eos_token_ids().empty()) hidden_stops.insert(kEos);
  }

  uint32_t next() {
    uint32_t mixed = hash + generated++ * 0x9e3779b9u;
    mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bu;
    mixed = (mixed ^ (mixed >> 13)) * 0xc2b2ae35u;
    return 3 + (mixed ^ (mixed >> 16)) % (kVocabSize - 3);
  }

  // Why `token`, the newest one, is the last one. A hidden stop wins over a visible one.
  ew::FinishReason end_at(uint32_t token) const {
    const bool may_stop = generated >= min_tokens;
    if (may_stop && hidden_stops.count(token)) return ew::FINISH_REASON_EOS;
    if (may_stop && visible_stops.count(token)) return ew::FINISH_REASON_STOP;
    return generated >= max_tokens ? ew::FINISH_REASON_LENGTH : ew::FINISH_REASON_UNSPECIFIED;
  }

  const std::string id;
  const uint32_t prompt_tokens;
  uint32_t hash = 2166136261u, max_tokens, min_tokens, generated = 0;
  std::set<uint32_t> visible_stops, hidden_stops;
  // What the reader has not seen yet, and why the request has ended.
  std::vector<uint32_t> unread;
  ew::FinishReason end = ew::FINISH_REASON_UNSPECIFIED;
  std::condition_variable changed;
};
using SequencePtr = std::shared_ptr<Sequence>;

class Engine {
 public:
  explicit Engine(std::function<void(ew::EngineState)> on_state)
      : lifetime_id(std::to_string(std::random_device()()) + "-" + std::to_string(std::random_device()())),
        on_state_(std::move(on_state)), thread_([this] { run(); }) {}
  ~Engine() {
    is_over_ = true;
    thread_.join();
  }

  const std::string lifetime_id;

  // Accepts the request, or throws a Failure and nothing has happened.
  void admit(const SequencePtr& sequence) {
    Lock lock(mutex_);
    if (is_cleaning_) throw Failure(ew::ERROR_REASON_ENGINE_DEAD, "", "the engine was cleaned up");
    if (is_closed()) throw Failure(ew::ERROR_REASON_DRAINING, "", "the server is draining");
    if (find(sequence->id)) throw Failure(ew::ERROR_REASON_DUPLICATE_ID, "request_id", "is live");
    if (recall(sequence->id) == ew::ABORT_OUTCOME_UNKNOWN && past_.erase(sequence->id))
      throw Failure(ew::ERROR_REASON_CANCELLED, "request_id", "aborted before it arrived");
    if (live_.size() >= kMaxRunning + kMaxWaiting)
      throw Failure(ew::ERROR_REASON_QUEUE_FULL, "", "the queue is full",
                    {{"queue_depth", std::to_string(waiting())}, {"limit", std::to_string(kMaxWaiting)}});
    live_.push_back(sequence);
  }

  // What the reader has not seen yet, after waiting for it a moment.
  std::pair<std::vector<uint32_t>, ew::FinishReason> read(Sequence& sequence, Seconds patience) {
    Lock lock(mutex_);
    sequence.changed.wait_for(lock, patience, [&] { return sequence.end || !sequence.unread.empty(); });
    return {std::exchange(sequence.unread, {}), sequence.end};
  }

  // Ends a request whose reader has gone, if it is live.
  void remove(const SequencePtr& sequence) {
    Lock lock(mutex_);
    if (!sequence->end) end(sequence, ew::FINISH_REASON_CANCELLED);
  }

  ew::AbortOutcome abort(const std::string& id) {
    Lock lock(mutex_);
    if (const SequencePtr sequence = find(id)) {
      end(sequence, ew::FINISH_REASON_CANCELLED);
      return ew::ABORT_OUTCOME_ABORTED;
    }
    if (!recall(id)) remember(id, ew::ABORT_OUTCOME_UNKNOWN);
    return recall(id);
  }

  std::vector<std::string> live_ids() {
    Lock lock(mutex_);
    std::vector<std::string> ids;
    for (const auto& sequence : live_) ids.push_back(sequence->id);
    return ids;
  }

  ew::Load load() {
    Lock lock(mutex_);
    ew::Load load = counts_;
    load.set_running(live_.size() - waiting());
    load.set_waiting(waiting());
    for (size_t i = kMaxRunning; i < live_.size(); ++i)
      load.set_waiting_tokens(load.waiting_tokens() + live_[i]->prompt_tokens);
    load.set_state(state_);
    load.set_engine_lifetime_id(lifetime_id);
    return load;
  }

  // Begins the drain or joins it. Of several deadlines the earliest wins; the grace is that of the first caller.
  void drain(Seconds deadline, Seconds grace) {
    Lock lock(mutex_);
    deadline_ = std::min(deadline_, after(deadline));
    if (grace_end_ == Clock::time_point::max()) grace_end_ = after(grace);
    if (state_ == ew::ENGINE_STATE_READY) enter(ew::ENGINE_STATE_DRAINING);
  }

  ew::DrainResponse progress() {
    Lock lock(mutex_);
    ew::DrainResponse response;
    response.set_state(drain_state());
    response.set_running(live_.size() - waiting());
    response.set_waiting(waiting());
    return response;
  }

  // True when an earlier call had cleaned up.
  bool cleanup(bool abort_in_flight) {
    Lock lock(mutex_);
    is_cleaning_ = true;
    if (state_ == ew::ENGINE_STATE_READY) enter(ew::ENGINE_STATE_DRAINING);
    if (abort_in_flight) abort_all();
    idle_.wait(lock, [this] { return live_.empty(); });
    const bool was_clean = state_ == ew::ENGINE_STATE_STOPPED;
    enter(ew::ENGINE_STATE_STOPPED);
    return was_clean;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Past {
    ew::AbortOutcome outcome;
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
      if (const auto why = sequence->end_at(token)) end(sequence, why);
    }
  }

  void end(const SequencePtr& sequence, ew::FinishReason why) {
    live_.erase(std::find(live_.begin(), live_.end(), sequence));
    counts_.set_requests_finished(counts_.requests_finished() + 1);
    remember(sequence->id, ew::ABORT_OUTCOME_FINISHED);
    sequence->end = why;
    sequence->changed.notify_one();
    if (live_.empty()) idle_.notify_all();
  }

  void abort_all() {
    while (!live_.empty()) end(live_.back(), ew::FINISH_REASON_CANCELLED);
  }

  size_t waiting() const { return live_.size() - std::min(live_.size(), kMaxRunning); }

  SequencePtr find(const std::string& id) const {
    const auto found = std::find_if(live_.begin(), live_.end(), [&](const auto& s) { return s->id == id; });
    return found == live_.end() ? nullptr : *found;
  }

  // What the next abort of this id is told; an unknown id that arrives after its abort is refused.
  void remember(const std::string& id, ew::AbortOutcome outcome) {
    const auto oldest = Clock::now() - std::chrono::seconds(10);
    for (auto entry = past_.begin(); entry != past_.end();)
      entry = entry->second.since < oldest || past_.size() >= 4096 ? past_.erase(entry) : std::next(entry);
    past_[id] = {outcome, Clock::now()};
  }

  ew::AbortOutcome recall(const std::string& id) const {
    const auto found = past_.find(id);
    const bool is_fresh = found != past_.end() && Clock::now() - found->second.since < std::chrono::seconds(10);
    return is_fresh ? found->second.outcome : ew::ABORT_OUTCOME_UNSPECIFIED;
  }

  bool is_closed() const { return Clock::now() >= std::min(grace_end_, deadline_); }

  ew::DrainState drain_state() {
    if (drained_) return drained_;
    if (!is_closed()) return ew::DRAIN_STATE_GRACE;
    if (live_.empty()) return drained_ = ew::DRAIN_STATE_DRAINED;
    if (Clock::now() < deadline_) return ew::DRAIN_STATE_DRAINING;
    abort_all();
    return drained_ = ew::DRAIN_STATE_TIMED_OUT;
  }

  void enter(ew::EngineState state) { on_state_(state_ = state); }

  // A caller may name a time that no clock reaches.
  static Clock::time_point after(Seconds seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::min(seconds, Seconds(1e8)));
  }

  std::mutex mutex_;
  std::function<void(ew::EngineState)> on_state_;
  ew::EngineState state_ = ew::ENGINE_STATE_READY;
  std::vector<SequencePtr> live_;
  std::condition_variable idle_;
  std::map<std::string, Past> past_;
  ew::Load counts_;
  bool is_cleaning_ = false;
  Clock::time_point grace_end_ = Clock::time_point::max(), deadline_ = Clock::time_point::max();
  ew::DrainState drained_ = ew::DRAIN_STATE_UNSPECIFIED;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};
