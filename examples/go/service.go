package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/golang/protobuf/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/enginewire/enginewire/gen/go/enginewire/v1"
)

// The RPCs: thin, each reads its message, asks the lifecycle, and answers.

const (
	schemaDigest    = "04fcb1bfd9466351c639afd6f855c64105acd53d2f7f1c694ba4c32dce1a17fd"
	shutdownTimeout = 30 * time.Second
)

type discoveryService struct {
	pb.UnimplementedDiscoveryServiceServer
	life *lifecycle
}

type engineService struct {
	pb.UnimplementedEngineServiceServer
	life *lifecycle
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
				DefaultSampling: &pb.SamplingDefaults{Temperature: 1, TopP: 1, RepetitionPenalty: 1},
			},
			Limits: &pb.Limits{MaxRequestBytes: proto.Uint64(4 << 20), MaxNumQueuedReqs: proto.Uint32(maxWaiting)},
		},
		EngineName:            "enginewire-example-go",
		EngineVersion:         "1",
		InstanceId:            d.life.lifetimeID,
		EngineLifetimeId:      d.life.lifetimeID,
		ContractRevision:      revision,
		MinimumClientRevision: revision,
		MaximumClientRevision: revision,
		SchemaDigest:          schemaDigest,
	}, nil
}

func (d *discoveryService) GetLoad(context.Context, *pb.GetLoadRequest) (*pb.GetLoadResponse, error) {
	return &pb.GetLoadResponse{Load: d.life.load()}, nil
}

func (d *discoveryService) WatchLoad(request *pb.WatchLoadRequest, stream pb.DiscoveryService_WatchLoadServer) error {
	interval := uint32(100)
	if request.MinIntervalMs != nil {
		interval = *request.MinIntervalMs
	}
	if interval < 10 {
		return invalid("min_interval_ms", fmt.Sprintf("too short, got %d, allowed from 10", interval))
	}
	current := func() (proto.Message, bool) { return &pb.WatchLoadResponse{Load: d.life.load()}, false }
	return watch(stream, time.Duration(interval)*time.Millisecond, current)
}

func (d *discoveryService) GetTokenizer(*pb.GetTokenizerRequest, pb.DiscoveryService_GetTokenizerServer) error {
	return &failure{reason: pb.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND, text: "this engine offers no tokenizer"}
}

func (e *engineService) Generate(generate *pb.GenerateRequest, stream pb.EngineService_GenerateServer) error {
	ctx := stream.Context()
	s, err := e.accept(ctx, generate)
	if err != nil {
		return withPushback(ctx, err)
	}
	// Also after a deadline and a lost connection.
	defer e.life.leave(s)
	if err := stream.SendHeader(metadata.Pairs("enginewire-lifetime-id", e.life.lifetimeID)); err != nil {
		return err
	}
	for position := uint32(0); ; {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.changed:
		}
		tokens, why := e.life.read(s)
		if len(tokens) == 0 && why == nil {
			continue
		}
		output := &pb.LLMEngineOutput{TokenIds: tokens, FirstOutputPosition: position}
		response := &pb.GenerateResponse{Output: output, RequestId: generate.RequestId}
		if position == 0 {
			response.EngineLifetimeId = e.life.lifetimeID
		}
		position += uint32(len(tokens))
		if why != nil {
			finish(output, why, s.promptTokens, position)
		}
		if err := stream.Send(response); err != nil || why != nil {
			return err
		}
	}
}

func (e *engineService) Abort(_ context.Context, request *pb.AbortRequest) (*pb.AbortResponse, error) {
	if request.All == (len(request.RequestIds) > 0) {
		return nil, invalid("request_ids", "exactly one of ids and all is needed")
	}
	ids := request.RequestIds
	if request.All {
		ids = e.life.liveIDs()
	}
	response := &pb.AbortResponse{}
	for _, id := range ids {
		response.Results = append(response.Results, &pb.AbortResult{RequestId: id, Outcome: e.life.abort(id)})
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
	e.life.drain(deadline, grace)
	return watch(stream, 10*time.Millisecond, func() (proto.Message, bool) {
		progress := e.life.progress()
		return progress, progress.State > pb.DrainState_DRAIN_STATE_DRAINING
	})
}

func (e *engineService) Cleanup(_ context.Context, request *pb.CleanupRequest) (*pb.CleanupResponse, error) {
	return &pb.CleanupResponse{AlreadyClean: e.life.cleanup(request.AbortInFlight)}, nil
}

// accept checks the request and puts it into the engine.
func (e *engineService) accept(ctx context.Context, generate *pb.GenerateRequest) (*sequence, error) {
	if err := e.life.checkOpen(); err != nil {
		return nil, err
	}
	if err := applyMetadata(ctx, generate); err != nil {
		return nil, err
	}
	if err := check(generate); err != nil {
		return nil, err
	}
	s := sequenceOf(generate.Request)
	return s, e.life.admit(generate.RequestId, s)
}

func sequenceOf(request *pb.PreprocessedRequest) *sequence {
	stop := request.GetStopConditions()
	room := uint32(contextLength - len(request.TokenIds))
	s := &sequence{
		promptHash:   hashOf(request.TokenIds),
		promptTokens: uint32(len(request.TokenIds)),
		maxTokens:    room,
		minTokens:    stop.GetMinTokens(),
		visibleStops: setOf(stop.GetStopTokenIds(), stop.GetStopTokenIdsVisible()),
		changed:      make(chan struct{}, 1),
	}
	if stop != nil && stop.MaxTokens != nil && *stop.MaxTokens < room {
		s.maxTokens = *stop.MaxTokens
	} else if request.IsProbe {
		s.maxTokens = 1
	}
	eosIDs := request.EosTokenIds
	if len(eosIDs) == 0 {
		eosIDs = []uint32{eos}
	}
	if !stop.GetIgnoreEos() {
		s.hiddenStops = setOf(stop.GetStopTokenIdsHidden(), eosIDs)
	}
	return s
}

func setOf(lists ...[]uint32) map[uint32]bool {
	set := map[uint32]bool{}
	for _, ids := range lists {
		for _, id := range ids {
			set[id] = true
		}
	}
	return set
}

func finish(output *pb.LLMEngineOutput, why *end, promptTokens, completionTokens uint32) {
	output.FinishReason = why.why
	if why.token != nil {
		output.StopMatch = &pb.StopMatch{Match: &pb.StopMatch_TokenId{TokenId: *why.token}}
	}
	total := promptTokens + completionTokens
	output.CompletionUsage = &pb.CompletionUsage{PromptTokens: promptTokens, CompletionTokens: completionTokens, TotalTokens: total}
}

// applyMetadata: reserved metadata keys mean what their fields mean; the two may not differ.
func applyMetadata(ctx context.Context, generate *pb.GenerateRequest) error {
	sent, _ := metadata.FromIncomingContext(ctx)
	if generate.Request == nil {
		return nil
	}
	routing := &pb.RoutingHints{}
	if generate.Request.Routing != nil {
		routing = generate.Request.Routing
	}
	for _, text := range sent.Get("enginewire-dp-rank") {
		rank, err := strconv.ParseUint(text, 10, 32)
		if err != nil || (routing.DpRank != nil && *routing.DpRank != uint32(rank)) {
			return invalid("enginewire-dp-rank", "no rank, or not what routing.dp_rank says")
		}
		routing.DpRank = proto.Uint32(uint32(rank))
	}
	for _, text := range sent.Get("enginewire-priority") {
		priority, err := strconv.ParseInt(text, 10, 32)
		if err != nil || (routing.Priority != nil && *routing.Priority != int32(priority)) {
			return invalid("enginewire-priority", "no priority, or not what routing.priority says")
		}
		routing.Priority = proto.Int32(int32(priority))
	}
	for _, text := range sent.Get("enginewire-routing-key") {
		if routing.RoutingKey != nil && *routing.RoutingKey != text {
			return invalid("enginewire-routing-key", "not what routing.routing_key says")
		}
	}
	generate.Request.Routing = routing
	return nil
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
