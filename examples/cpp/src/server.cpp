// The program: `build/engine --listen 127.0.0.1:50051` or `--listen unix:/run/engine.sock`.

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <iostream>

#include "service.h"

namespace {

const char* const kNames[] = {"enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"};

// gRPC replaces a socket file without asking whether anybody listens on it.
bool is_live_socket(const std::string& address) {
  if (address.rfind("unix:", 0) != 0) return false;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, address.c_str() + std::strlen("unix:"), sizeof(name.sun_path) - 1);
  const int probe = socket(AF_UNIX, SOCK_STREAM, 0);
  const bool is_live = connect(probe, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0;
  close(probe);
  return is_live;
}

// Drains until a second signal or the end of the drain.
void shut_down(Engine& engine, const sigset_t& signals) {
  const timespec tick{0, 10'000'000};
  engine.drain(kShutdownTimeout, Seconds::zero());
  while (engine.progress().state() <= ew::DRAIN_STATE_DRAINING) {
    if (sigtimedwait(&signals, nullptr, &tick) > 0) engine.drain(Seconds::zero(), Seconds::zero());
  }
  engine.cleanup(true);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string option = argc == 3 ? argv[1] : "";
  if (option != "--listen") {
    std::cerr << "usage: " << argv[0] << " --listen HOST:PORT|unix:PATH\n";
    return 2;
  }
  if (is_live_socket(argv[2])) {
    std::cerr << argv[2] << " is in use\n";
    return 1;
  }
  // Every thread inherits the mask; the main thread waits for the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  grpc::HealthCheckServiceInterface* health = nullptr;
  Engine engine([&](ew::EngineState state) {
    for (const char* name : kNames) health->SetServingStatus(name, false);
    if (state == ew::ENGINE_STATE_STOPPED) health->SetServingStatus("", false);
  });
  EngineRpcs engine_rpcs(engine);
  DiscoveryRpcs discovery_rpcs(engine);

  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(argv[2], grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&engine_rpcs);
  builder.RegisterService(&discovery_rpcs);
  // Two servers must not share an address without knowing it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  // gRPC cuts a port number that is too large, and listens there.
  const std::string address = argv[2], asked = address.substr(address.rfind(':') + 1);
  if (!server || (address.rfind("unix:", 0) != 0 && asked != std::to_string(port))) {
    std::cerr << "cannot listen on " << address << "\n";
    return 1;
  }
  health = server->GetHealthCheckService();
  for (const char* name : kNames) health->SetServingStatus(name, true);
  std::cout << "listening on " << argv[2] << std::endl;

  int signal = 0;
  sigwait(&signals, &signal);
  shut_down(engine, signals);
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return 0;
}
