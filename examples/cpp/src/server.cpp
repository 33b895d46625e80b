// The program: `build/engine --listen 127.0.0.1:50051` or `--listen unix:/run/engine.sock`.

#include "enginewire/server.h"

#include <iostream>
#include <string>

#include "service.h"

int main(int argc, char** argv) {
  const std::string option = argc == 3 ? argv[1] : "";
  if (option != "--listen") {
    std::cerr << "usage: " << argv[0] << " --listen HOST:PORT|unix:PATH\n";
    return 2;
  }
  ew::Server server;
  Engine engine(server.health);
  EngineRpcs engine_rpcs(engine);
  DiscoveryRpcs discovery_rpcs(engine);
  return server.run(argv[2], engine, {&engine_rpcs, &discovery_rpcs});
}
