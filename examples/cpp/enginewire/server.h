// The process: address, keepalive, health, signals. Of its engine it knows how a drain begins and how far it is.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <mutex>
#include <utility>

#include "enginewire/v1/discovery_service.grpc.pb.h"
#include "enginewire/v1/engine_service.grpc.pb.h"
#include "enginewire/watch.h"

namespace enginewire {

constexpr std::chrono::seconds kShutdownTimeout(30);
constexpr int kMinKeepaliveMs = 1000;  // To advertise as Limits.min_keepalive_interval_ms.

// What grpc.health.v1 says of the engine.
class Health {
 public:
  void set(v1::EngineState state) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(state_, state) != state) show();
  }

  // Nobody is told before a server listens, nor after its end.
  void report_to(grpc::HealthCheckServiceInterface* service) {
    const std::lock_guard lock(mutex_);
    service_ = service;
    show();
  }

 private:
  // The services are there while requests are accepted; "", which gRPC sets first, while the process is worth
  // keeping. To tell the same again would look like a change.
  void show() {
    if (!service_) return;
    for (const char* name : {v1::EngineService::service_full_name(), v1::DiscoveryService::service_full_name()})
      service_->SetServingStatus(name, state_ == v1::ENGINE_STATE_READY);
    const bool is_over = state_ == v1::ENGINE_STATE_STOPPED || state_ == v1::ENGINE_STATE_DEAD;
    if (is_over) service_->SetServingStatus("", false);
  }

  std::mutex mutex_;
  v1::EngineState state_ = v1::ENGINE_STATE_READY;
  grpc::HealthCheckServiceInterface* service_ = nullptr;
};

inline bool is_socket(const std::string& address) { return address.rfind("unix:", 0) == 0; }

// gRPC replaces a socket file without asking whether anybody listens on it.
inline bool is_live_socket(const std::string& address) {
  if (!is_socket(address)) return false;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, address.c_str() + std::strlen("unix:"), sizeof(name.sun_path) - 1);
  const int probe = socket(AF_UNIX, SOCK_STREAM, 0);
  const bool is_live = connect(probe, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
  close(probe);
  return is_live;
}

// The server. It is made before its engine, whose threads inherit that signals are for the main thread.
class Server {
 public:
  Server() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }

  // Serves until a first signal has drained the engine, or a second one has ended the drain. Returns the exit code.
  template <typename Engine>
  int run(const std::string& address, Engine& engine, std::initializer_list<grpc::Service*> services) {
    const auto server = listen(address, services);
    if (!server) {
      std::cerr << "cannot listen on '" << address << "': in use, or no address\n";
      return 1;
    }
    health.report_to(server->GetHealthCheckService());
    std::cout << "listening on " << address << std::endl;

    int number = 0;
    sigwait(&signals_, &number);
    engine.begin_drain(kShutdownTimeout);
    const timespec tick{0, 5'000'000};
    while (!is_final(engine.progress()))
      if (sigtimedwait(&signals_, nullptr, &tick) > 0) engine.begin_drain(Clock::duration::zero());
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    health.report_to(nullptr);
    return 0;
  }

  Health health;

 private:
  // Nothing where the address cannot be had.
  static std::unique_ptr<grpc::Server> listen(const std::string& address,
                                              std::initializer_list<grpc::Service*> services) {
    if (is_live_socket(address)) return nullptr;
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    for (auto* service : services) builder.RegisterService(service);
    // Two servers must not share an address without knowing it.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    auto server = builder.BuildAndStart();
    // gRPC cuts a port number that is too large, and listens there.
    const std::string asked = address.substr(address.rfind(':') + 1);
    return is_socket(address) || asked == std::to_string(port) ? std::move(server) : nullptr;
  }

  sigset_t signals_;
};

}  // namespace enginewire
