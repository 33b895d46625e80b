// An engine server whose model is a hash. `engine --listen 127.0.0.1:50051` or `--listen unix:/run/engine.sock`.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	pb "example.com/engine/gen/enginewire/v1"
)

var serviceNames = []string{"enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"}

func main() {
	address := flag.String("listen", "127.0.0.1:50051", "HOST:PORT or unix:PATH")
	flag.Parse()
	listener, err := listen(*address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	checks := health.NewServer()
	setServing(checks, healthpb.HealthCheckResponse_SERVING, serviceNames...)
	engine := newEngine(func(state pb.EngineState) {
		setServing(checks, healthpb.HealthCheckResponse_NOT_SERVING, serviceNames...)
		if state == pb.EngineState_ENGINE_STATE_STOPPED {
			setServing(checks, healthpb.HealthCheckResponse_NOT_SERVING, "")
		}
	})
	server := grpc.NewServer(
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	pb.RegisterEngineServiceServer(server, &engineService{engine: engine})
	pb.RegisterDiscoveryServiceServer(server, &discoveryService{engine: engine})
	healthpb.RegisterHealthServer(server, checks)
	go shutDown(server, engine)
	fmt.Println("listening on", *address)
	if err := server.Serve(listener); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// listen replaces the socket file of a dead server.
func listen(address string) (net.Listener, error) {
	path := strings.TrimPrefix(address, "unix:")
	if path == address {
		return net.Listen("tcp", address)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%s is in use", path)
	}
	if file, err := os.Stat(path); err == nil && file.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path)
	}
	return net.Listen("unix", path)
}

func setServing(checks *health.Server, status healthpb.HealthCheckResponse_ServingStatus, names ...string) {
	for _, name := range names {
		checks.SetServingStatus(name, status)
	}
}

// shutDown drains after the first signal; a second one cuts the drain short.
func shutDown(server *grpc.Server, engine *engine) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	<-signals
	engine.drain(shutdownTimeout, 0)
	for engine.progress().State <= pb.DrainState_DRAIN_STATE_DRAINING {
		select {
		case <-signals:
			engine.drain(0, 0)
		case <-time.After(10 * time.Millisecond):
		}
	}
	engine.cleanup(true)
	// Watches of health never end on their own.
	time.AfterFunc(time.Second, server.Stop)
	server.GracefulStop()
}
