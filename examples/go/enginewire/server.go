package enginewire

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // Callers may compress.
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	pb "example.com/engine/gen/enginewire/v1"
)

// Engine is what the server has to know of an engine, which embeds a Base.
type Engine interface {
	pb.EngineServiceServer
	pb.DiscoveryServiceServer

	// BeginDrain begins a drain or joins it. An engine may leave out the grace.
	BeginDrain(limit, grace time.Duration)
	// Progress is the load, and how far the drain is that has begun.
	Progress() (*pb.Load, pb.DrainState)

	health() *Health
}

// Base is what all engines have: GetEngineInfo, health, and UNIMPLEMENTED for the RPCs that the engine does not have.
type Base struct {
	pb.UnimplementedEngineServiceServer
	pb.UnimplementedDiscoveryServiceServer

	Health *Health
	info   *pb.GetEngineInfoResponse
}

// NewBase is the base of an engine that is ready to serve, and advertises config.
func NewBase(name, version string, config *pb.EngineConfig) Base {
	return Base{Health: newHealth(), info: info(name, version, config)}
}

// GetEngineInfo says what the engine is.
func (b *Base) GetEngineInfo(context.Context, *pb.GetEngineInfoRequest) (*pb.GetEngineInfoResponse, error) {
	return b.info, nil
}

func (b *Base) health() *Health { return b.Health }

// Health is that of grpc.health.v1. Its Shutdown is for an engine that has stopped for good.
type Health struct{ *health.Server }

func newHealth() *Health {
	h := &Health{health.NewServer()}
	h.set(healthpb.HealthCheckResponse_SERVING)
	return h
}

// BeginDrain makes the services NOT_SERVING; the process is still worth keeping.
func (h *Health) BeginDrain() { h.set(healthpb.HealthCheckResponse_NOT_SERVING) }

func (h *Health) set(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"} {
		h.SetServingStatus(name, status)
	}
}

// Serve serves the engine at HOST:PORT or unix:PATH until a signal has drained it.
func Serve(address string, engine Engine) error {
	listener, err := listen(address)
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(func(
			ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
		) (any, error) {
			response, err := handle(ctx, request)
			return response, onWire(ctx, err)
		}),
		grpc.StreamInterceptor(func(
			service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
		) error {
			return onWire(stream.Context(), handle(service, stream))
		}),
	)
	pb.RegisterEngineServiceServer(server, engine)
	pb.RegisterDiscoveryServiceServer(server, engine)
	healthpb.RegisterHealthServer(server, engine.health())
	go shutDown(server, engine)
	fmt.Println("listening on", address)
	return server.Serve(listener)
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

// shutDown drains after the first signal; a second one cuts the drain short.
func shutDown(server *grpc.Server, engine Engine) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	<-signals
	engine.BeginDrain(ShutdownTimeout, 0)
	for {
		if _, state := engine.Progress(); isOver(state) {
			break
		}
		select {
		case <-signals:
			engine.BeginDrain(0, 0)
		case <-time.After(10 * time.Millisecond):
		}
	}
	// Watches of health never end on their own.
	time.AfterFunc(time.Second, server.Stop)
	server.GracefulStop()
}
