package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"example.com/engine/enginewire"
	pb "example.com/engine/gen/enginewire/v1"
)

// The RPCs: thin, each reads its message, asks the engine, and answers.

var config = &pb.EngineConfig{
	Model:           "hash",
	ServedModelName: "hash-in-go",
	ContextLength:   proto.Uint32(4096),
	MaxNumSeqs:      proto.Uint64(maxRunning),
	VocabSize:       1000,
	EosTokenIds:     []uint32{2},
	Role:            pb.EngineRole_ENGINE_ROLE_AGGREGATED,
	Capabilities: &pb.Capabilities{
		Cleanup: true, WatchLoad: true,
		DefaultSampling: &pb.SamplingDefaults{Temperature: 1, TopP: 1, RepetitionPenalty: 1},
	},
	Limits: &pb.Limits{
		MaxPromptTokens:        proto.Uint32(4080),
		MaxRequestBytes:        proto.Uint64(4 << 20),
		MaxNumQueuedReqs:       proto.Uint32(maxWaiting),
		MinKeepaliveIntervalMs: proto.Uint32(1000),
	},
}

// Of what is left out, the base says that it is not implemented.
type service struct {
	enginewire.Base
	*engine
}

func (s *service) GetLoad(context.Context, *pb.GetLoadRequest) (*pb.GetLoadResponse, error) {
	load, _ := s.Progress()
	return &pb.GetLoadResponse{Load: load}, nil
}

func (s *service) WatchLoad(request *pb.WatchLoadRequest, stream pb.DiscoveryService_WatchLoadServer) error {
	interval := uint32(100)
	if request.MinIntervalMs != nil {
		interval = *request.MinIntervalMs
	}
	if interval < 10 {
		return enginewire.Invalid("min_interval_ms", fmt.Sprintf("too short, got %d, allowed from 10", interval))
	}
	return enginewire.Watch(stream, time.Duration(interval)*time.Millisecond, func() (proto.Message, bool) {
		load, _ := s.Progress()
		return &pb.WatchLoadResponse{Load: load}, false
	})
}

func (s *service) Generate(generate *pb.GenerateRequest, stream pb.EngineService_GenerateServer) error {
	if err := enginewire.Check(generate, config); err != nil {
		return err
	}
	sequence := newSequence(generate)
	if err := s.admit(sequence); err != nil {
		return err
	}
	// Also after a deadline and a lost connection.
	defer s.remove(sequence)
	return enginewire.Send(stream, sequence.answer, sequence.changed, func() ([]uint32, pb.FinishReason) {
		return s.read(sequence)
	})
}

func (s *service) Abort(_ context.Context, request *pb.AbortRequest) (*pb.AbortResponse, error) {
	return enginewire.Abort(request, s.liveIDs(), s.abort)
}

func (s *service) Drain(request *pb.DrainRequest, stream pb.EngineService_DrainServer) error {
	return enginewire.Drain(request, stream, s)
}

func (s *service) Cleanup(_ context.Context, request *pb.CleanupRequest) (*pb.CleanupResponse, error) {
	return &pb.CleanupResponse{AlreadyClean: s.cleanup(request.AbortInFlight)}, nil
}
