// What the server is doing: ready, draining, stopped; which requests are live; and the one drain.
// Everything behind one lock, which the step thread takes once per step.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "engine.h"
#include "enginewire/v1/discovery_service.pb.h"
#include "enginewire/v1/engine_service.pb.h"

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// What a reader gets at once: tokens, the end, or both. Neither when it only waited.
struct Piece {
  std::vector<uint32_t> tokens;
  std::optional<End> end;
};

class Lifecycle {
 public:
  explicit Lifecycle(std::function<void(bool is_stopped)> on_not_ready);
  ~Lifecycle();

  const std::string lifetime_id;

  void check_open();
  // Accepts the request, or throws a Failure and nothing has happened.
  void admit(const std::string& id, const SequencePtr& sequence);
  Piece next(const SequencePtr& sequence, Seconds patience);
  // Ends a request whose reader has gone.
  void leave(const std::string& id, const SequencePtr& sequence);
  enginewire::v1::AbortOutcome abort(const std::string& id);
  std::vector<std::string> live_ids();
  enginewire::v1::Load load();
  // Begins the drain or joins it. Of several deadlines the earliest wins.
  void drain(Seconds deadline, Seconds grace);
  enginewire::v1::DrainResponse progress();
  // True when an earlier call had cleaned up.
  bool cleanup(bool abort_in_flight);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run();
  void forget_ended();
  void remember(const std::string& id);
  void abort_all();
  void leave_ready();
  enginewire::v1::DrainState drain_state();

  std::mutex mutex_;
  std::function<void(bool)> on_not_ready_;
  Engine engine_;
  enginewire::v1::EngineState state_ = enginewire::v1::ENGINE_STATE_READY;
  bool is_cleaning_ = false;
  std::map<std::string, SequencePtr> sequences_;
  std::map<std::string, Clock::time_point> ended_;
  std::map<std::string, Clock::time_point> early_aborts_;
  Clock::time_point grace_end_ = Clock::time_point::max();
  Clock::time_point deadline_ = Clock::time_point::max();
  std::optional<enginewire::v1::DrainState> drained_;
  bool is_over_ = false;
  std::thread thread_;
};
