#include "lifecycle.h"

#include <algorithm>
#include <random>

#include "failure.h"

using namespace enginewire::v1;
using std::chrono::duration_cast;

namespace {

constexpr auto kStep = std::chrono::milliseconds(4);
constexpr auto kRemembered = std::chrono::seconds(10);
constexpr size_t kMostRemembered = 4096;

std::string random_id() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

Clock::time_point after(Seconds seconds) {
  // A client may name a time that no clock reaches.
  return Clock::now() + duration_cast<Clock::duration>(std::min(seconds, Seconds(1e8)));
}

// Drops what is old, and the first ones when there are too many.
void trim(std::map<std::string, Clock::time_point>& ids) {
  const auto oldest = Clock::now() - kRemembered;
  for (auto entry = ids.begin(); entry != ids.end();) {
    entry = entry->second < oldest || ids.size() > kMostRemembered ? ids.erase(entry) : std::next(entry);
  }
}

}  // namespace

Lifecycle::Lifecycle(std::function<void(bool)> on_not_ready)
    : lifetime_id(random_id()), on_not_ready_(std::move(on_not_ready)), thread_([this] { run(); }) {}

Lifecycle::~Lifecycle() {
  {
    Lock lock(mutex_);
    is_over_ = true;
  }
  thread_.join();
}

void Lifecycle::run() {
  auto next = Clock::now();
  for (bool is_over = false; !is_over;) {
    std::this_thread::sleep_until(next += kStep);
    Lock lock(mutex_);
    engine_.step();
    forget_ended();
    if (grace_end_ < Clock::time_point::max()) drain_state();
    is_over = is_over_;
  }
}

void Lifecycle::check_open() {
  Lock lock(mutex_);
  if (is_cleaning_) throw Failure(ERROR_REASON_ENGINE_DEAD, "", "the engine was cleaned up");
  if (Clock::now() >= grace_end_) throw Failure(ERROR_REASON_DRAINING, "", "the server is draining");
}

void Lifecycle::admit(const std::string& id, const SequencePtr& sequence) {
  Lock lock(mutex_);
  forget_ended();
  if (sequences_.count(id)) throw Failure(ERROR_REASON_DUPLICATE_ID, "request_id", "is live");
  trim(early_aborts_);
  if (early_aborts_.erase(id))
    throw Failure(ERROR_REASON_CANCELLED, "request_id", "aborted before it arrived");
  if (engine_.live() >= kMaxRunning + kMaxWaiting) {
    const std::string depth = std::to_string(engine_.waiting.size());
    throw Failure(ERROR_REASON_QUEUE_FULL, "", "the queue is full",
                  {{"queue_depth", depth}, {"limit", std::to_string(kMaxWaiting)}});
  }
  sequences_[id] = sequence;
  engine_.waiting.push_back(sequence);
}

Piece Lifecycle::next(const SequencePtr& sequence, Seconds patience) {
  Lock lock(mutex_);
  sequence->changed.wait_for(lock, patience, [&] { return sequence->end || !sequence->unread.empty(); });
  return {std::exchange(sequence->unread, {}), sequence->end};
}

void Lifecycle::leave(const std::string& id, const SequencePtr& sequence) {
  Lock lock(mutex_);
  if (engine_.remove(sequence, End{FINISH_REASON_CANCELLED, {}})) {
    sequences_.erase(id);
    remember(id);
  }
}

AbortOutcome Lifecycle::abort(const std::string& id) {
  Lock lock(mutex_);
  forget_ended();
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) {
    engine_.remove(found->second, End{FINISH_REASON_CANCELLED, {}});
    return ABORT_OUTCOME_ABORTED;
  }
  if (ended_.count(id)) return ABORT_OUTCOME_FINISHED;
  early_aborts_[id] = Clock::now();
  trim(early_aborts_);
  return ABORT_OUTCOME_UNKNOWN;
}

std::vector<std::string> Lifecycle::live_ids() {
  Lock lock(mutex_);
  forget_ended();
  std::vector<std::string> ids;
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  return ids;
}

Load Lifecycle::load() {
  Lock lock(mutex_);
  Load load;
  load.set_running(engine_.running.size());
  load.set_waiting(engine_.waiting.size());
  for (const auto& sequence : engine_.waiting)
    load.set_waiting_tokens(load.waiting_tokens() + sequence->prompt_tokens);
  load.set_step(engine_.steps);
  load.set_requests_finished(engine_.finished);
  load.set_tokens_generated(engine_.tokens_generated);
  load.set_state(state_);
  load.set_engine_lifetime_id(lifetime_id);
  return load;
}

void Lifecycle::drain(Seconds deadline, Seconds grace) {
  Lock lock(mutex_);
  deadline_ = std::min(deadline_, after(deadline));
  if (grace_end_ < Clock::time_point::max()) return;
  grace_end_ = after(grace);
  leave_ready();
}

DrainResponse Lifecycle::progress() {
  Lock lock(mutex_);
  DrainResponse response;
  response.set_state(drain_state());
  response.set_running(engine_.running.size());
  response.set_waiting(engine_.waiting.size());
  return response;
}

bool Lifecycle::cleanup(bool abort_in_flight) {
  Lock lock(mutex_);
  is_cleaning_ = true;
  leave_ready();
  if (abort_in_flight) abort_all();
  while (engine_.live() > 0) {
    lock.unlock();
    std::this_thread::sleep_for(kStep);
    lock.lock();
  }
  const bool was_clean = state_ == ENGINE_STATE_STOPPED;
  state_ = ENGINE_STATE_STOPPED;
  on_not_ready_(true);
  return was_clean;
}

// Requests that the engine has ended are no longer live.
void Lifecycle::forget_ended() {
  for (auto entry = sequences_.begin(); entry != sequences_.end();) {
    if (entry->second->end) remember(entry->first);
    entry = entry->second->end ? sequences_.erase(entry) : std::next(entry);
  }
}

void Lifecycle::remember(const std::string& id) {
  ended_[id] = Clock::now();
  trim(ended_);
}

void Lifecycle::abort_all() {
  for (const auto& [id, sequence] : sequences_) engine_.remove(sequence, End{FINISH_REASON_CANCELLED, {}});
  forget_ended();
}

void Lifecycle::leave_ready() {
  if (state_ != ENGINE_STATE_READY) return;
  state_ = ENGINE_STATE_DRAINING;
  on_not_ready_(false);
}

DrainState Lifecycle::drain_state() {
  const auto now = Clock::now();
  if (drained_) return *drained_;
  if (now < std::min(grace_end_, deadline_)) return DRAIN_STATE_GRACE;
  grace_end_ = std::min(grace_end_, now);
  if (engine_.live() > 0 && now < deadline_) return DRAIN_STATE_DRAINING;
  drained_ = engine_.live() == 0 ? DRAIN_STATE_DRAINED : DRAIN_STATE_TIMED_OUT;
  abort_all();
  return *drained_;
}
