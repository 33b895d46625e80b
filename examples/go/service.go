package main

import (
	"context"
	"fmt"
	"time"

	"github.com/golang/protobuf/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/engine/gen/enginewire/v1"
)

// The RPCs: thin, each reads its message, asks the lifecycle, and answers.

const (
	schemaDigest    = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401"
	shutdownTimeout = 30 * time.Second
	mostIDs         = 16384 // Of one abort.
)

// Of what is left out, gRPC says that it is not implemented.
type discoveryService struct {
	pb.UnimplementedDiscoveryServiceServer
	engine *engine
}

type engineService struct {
	pb.UnimplementedEngineServiceServer
	engine *engine
}

func (d *discoveryService) GetEngineInfo(context.Context, *pb.GetEngineInfoRequest) (*pb.GetEngineInfoResponse, error) {
	return &pb.GetEngineInfoResponse{
		Config: &pb.EngineConfig{
			Model:         model,
			ContextLength: proto.Uint32(contextLength),
			MaxNumSeqs:    proto.Uint64(maxRunning),
			VocabSize:     vocabSize,
			EosTokenIds:   []uint32{eos},
			Role:          pb.EngineRole_ENGINE_ROLE_AGGREGATED,
			Capabilities: &pb.Capabilities{
				Cleanup: true, WatchLoad: true,
				DefaultSampling: &pb.SamplingDefaults{Temperature: 1, TopP: 1, RepetitionPenalty: 1},
			},
			Limits: &pb.Limits{MaxRequestBytes: proto.Uint64(4 << 20), MaxNumQueuedReqs: proto.Uint32(maxWaiting), MinKeepaliveIntervalMs: proto.Uint32(1000)},
		},
		EngineName:            "enginewire-example-go",
		EngineVersion:         "1",
		InstanceId:            d.engine.lifetimeID,
		EngineLifetimeId:      d.engine.lifetimeID,
		ContractRevision:      revision,
		MinimumClientRevision: oldestRevision,
		MaximumClientRevision: revision,
		SchemaDigest:          schemaDigest,
	}, nil
}

func (d *discoveryService) GetLoad(context.Context, *pb.GetLoadRequest) (*pb.GetLoadResponse, error) {
	return &pb.GetLoadResponse{Load: d.engine.load()}, nil
}

func (d *discoveryService) WatchLoad(request *pb.WatchLoadRequest, stream pb.DiscoveryService_WatchLoadServer) error {
	interval := uint32(100)
	if request.MinIntervalMs != nil {
		interval = *request.MinIntervalMs
	}
	if interval < 10 {
		return invalid("min_interval_ms", fmt.Sprintf("too short, got %d, allowed from 10", interval))
	}
	current := func() (proto.Message, bool) { return &pb.WatchLoadResponse{Load: d.engine.load()}, false }
	return watch(stream, time.Duration(interval)*time.Millisecond, current)
}

func (e *engineService) Generate(generate *pb.GenerateRequest, stream pb.EngineService_GenerateServer) error {
	ctx := stream.Context()
	s, err := e.accept(generate)
	if err != nil {
		return withPushback(ctx, err)
	}
	// Also after a deadline and a lost connection.
	defer e.engine.remove(s)
	if err := stream.SendHeader(metadata.Pairs("enginewire-lifetime-id", e.engine.lifetimeID)); err != nil {
		return err
	}
	for position := uint32(0); ; {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.changed:
		}
		tokens, why := e.engine.read(s)
		if len(tokens) == 0 && why == 0 {
			continue
		}
		output := &pb.LLMEngineOutput{TokenIds: tokens, FirstOutputPosition: position}
		response := &pb.GenerateResponse{Output: output, RequestId: generate.RequestId}
		if position == 0 {
			response.EngineLifetimeId = e.engine.lifetimeID
		}
		position += uint32(len(tokens))
		if why != 0 {
			finish(output, why, s.promptTokens, position)
		}
		if err := stream.Send(response); err != nil || why != 0 {
			return err
		}
	}
}

func (e *engineService) Abort(_ context.Context, request *pb.AbortRequest) (*pb.AbortResponse, error) {
	if request.All == (len(request.RequestIds) > 0) {
		return nil, invalid("request_ids", "exactly one of ids and all is needed")
	}
	if count := len(request.RequestIds); count > mostIDs {
		return nil, invalid("request_ids", fmt.Sprintf("too many for one answer, got %d, allowed %d", count, mostIDs))
	}
	ids := request.RequestIds
	if request.All {
		ids = e.engine.liveIDs()
	}
	response := &pb.AbortResponse{}
	for _, id := range ids {
		response.Results = append(response.Results, &pb.AbortResult{RequestId: id, Outcome: e.engine.abort(id)})
	}
	return response, nil
}

func (e *engineService) Drain(request *pb.DrainRequest, stream pb.EngineService_DrainServer) error {
	deadline, err := seconds("deadline", request.Deadline, shutdownTimeout)
	if err != nil {
		return err
	}
	grace, err := seconds("admission_grace", request.AdmissionGrace, 0)
	if err != nil {
		return err
	}
	e.engine.drain(deadline, grace)
	return watch(stream, 10*time.Millisecond, func() (proto.Message, bool) {
		progress := e.engine.progress()
		return progress, progress.State > pb.DrainState_DRAIN_STATE_DRAINING
	})
}

func (e *engineService) Cleanup(_ context.Context, request *pb.CleanupRequest) (*pb.CleanupResponse, error) {
	return &pb.CleanupResponse{AlreadyClean: e.engine.cleanup(request.AbortInFlight)}, nil
}

// accept checks the request and puts it into the engine.
func (e *engineService) accept(generate *pb.GenerateRequest) (*sequence, error) {
	if err := check(generate); err != nil {
		return nil, err
	}
	s := newSequence(generate.RequestId, generate.Request)
	return s, e.engine.admit(s)
}

func finish(output *pb.LLMEngineOutput, why pb.FinishReason, promptTokens, completionTokens uint32) {
	output.FinishReason = why
	if why == pb.FinishReason_FINISH_REASON_STOP {
		stop := output.TokenIds[len(output.TokenIds)-1]
		output.StopMatch = &pb.StopMatch{Match: &pb.StopMatch_TokenId{TokenId: stop}}
	}
	total := promptTokens + completionTokens
	output.CompletionUsage = &pb.CompletionUsage{PromptTokens: promptTokens, CompletionTokens: completionTokens, TotalTokens: total}
}

func seconds(field string, duration *durationpb.Duration, absent time.Duration) (time.Duration, error) {
	if duration == nil {
		return absent, nil
	}
	if duration.Seconds < 0 || duration.Nanos < 0 {
		return 0, invalid(field, "must not be negative")
	}
	return duration.AsDuration(), nil
}

// watch sends what current returns at once and after every change, until it is final or the caller goes.
func watch(stream grpc.ServerStream, interval time.Duration, current func() (proto.Message, bool)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for last := proto.Message(nil); ; {
		message, isFinal := current()
		if last == nil || !proto.Equal(message, last) {
			if err := stream.SendMsg(message); err != nil {
				return err
			}
		}
		if isFinal {
			return nil
		}
		last = message
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-ticker.C:
		}
	}
}
