// The program: `node dist/src/server.js --listen 127.0.0.1:50051` or `--listen unix:/run/engine.sock`.

import { Server, ServerCredentials } from "@grpc/grpc-js";
import { HealthImplementation } from "grpc-health-check";
import { lstatSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { parseArgs } from "node:util";
import { DiscoveryServiceService, EngineState } from "../gen/enginewire/v1/discovery_service.js";
import { DrainState, EngineServiceService } from "../gen/enginewire/v1/engine_service.js";
import { Engine } from "./engine.js";
import { discoveryService, engineService, SHUTDOWN_TIMEOUT_MS } from "./service.js";

const NAMES = ["enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"];

const { values } = parseArgs({ options: { listen: { type: "string", default: "127.0.0.1:50051" } } });
const health = new HealthImplementation(Object.fromEntries(["", ...NAMES].map((name) => [name, "SERVING"])));
const engine = new Engine((state) => {
  NAMES.forEach((name) => health.setStatus(name, "NOT_SERVING"));
  if (state === EngineState.ENGINE_STATE_STOPPED) health.setStatus("", "NOT_SERVING");
});
const server = new Server({
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 5_000,
  "grpc.max_receive_message_length": 4 << 20,
});
server.addService(EngineServiceService, engineService(engine));
server.addService(DiscoveryServiceService, discoveryService(engine));
health.addToServer(server);
await removeStaleSocket(values.listen.replace(/^unix:/, ""));
server.bindAsync(values.listen, ServerCredentials.createInsecure(), (error) => {
  if (error) {
    console.error(error.message);
    process.exit(1);
  }
  console.log(`listening on ${values.listen}`);
});

/** A socket file that nobody listens on is left over from a dead server. */
async function removeStaleSocket(path: string): Promise<void> {
  if (!lstatSync(path, { throwIfNoEntry: false })?.isSocket()) return;
  const isAlive = await new Promise((answer) => {
    const probe = connect(path).on("error", () => answer(false));
    probe.on("connect", () => answer(probe.destroy() !== undefined));
  });
  if (!isAlive) rmSync(path);
}

/** Drains after the first signal; a second one cuts the drain short. */
async function shutDown(): Promise<void> {
  engine.drain(signals++ ? 0 : SHUTDOWN_TIMEOUT_MS, 0);
  while (engine.progress().state <= DrainState.DRAIN_STATE_DRAINING)
    await new Promise((done) => setTimeout(done, 10));
  await engine.cleanup(true);
  // The last outputs are on their way; watches of health never end on their own.
  setTimeout(() => process.exit(0), 1000).unref();
  server.tryShutdown(() => process.exit(0));
}
let signals = 0;
process.on("SIGTERM", shutDown);
process.on("SIGINT", shutDown);
