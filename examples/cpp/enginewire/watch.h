// Time in requests, and streams that tell what changes.
#pragma once

#include <chrono>
#include <optional>
#include <thread>

#include "enginewire/failure.h"
#include "enginewire/v1/discovery_service.pb.h"
#include "enginewire/v1/engine_service.pb.h"

namespace enginewire {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// A duration of a request. A negative one is refused; of what no clock reaches three years are enough.
inline Clock::duration duration(const std::string& field, const google::protobuf::Duration& given) {
  const Seconds seconds(given.seconds() + given.nanos() / 1e9);
  if (seconds < Seconds::zero()) throw invalid(field, "must not be negative, got ", seconds.count(), " s");
  return std::chrono::duration_cast<Clock::duration>(std::min(seconds, Seconds(1e8)));
}

// A drain comes to an end, a load never does.
inline bool is_final(const v1::DrainResponse& progress) { return progress.state() > v1::DRAIN_STATE_DRAINING; }
inline bool is_final(const v1::WatchLoadResponse&) { return false; }

// Sends `current` at once and after every change, until it is final or the caller goes.
template <typename Response, typename Current>
void watch(grpc::ServerContext& context, grpc::ServerWriter<Response>& writer, Clock::duration interval,
           Current current) {
  const std::chrono::milliseconds patience(5);
  std::optional<std::string> last;
  while (!context.IsCancelled()) {
    const Response message = current();
    if (last != message.SerializeAsString()) writer.Write(message);
    if (is_final(message)) return;
    last = message.SerializeAsString();
    const auto until = Clock::now() + interval;
    while (Clock::now() < until && !context.IsCancelled()) std::this_thread::sleep_for(patience);
  }
}

}  // namespace enginewire
