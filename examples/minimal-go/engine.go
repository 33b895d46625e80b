// The smallest engine of the contract: `build/engine 127.0.0.1:50051`, or `unix:/run/engine.sock`.
// Its model is a hash: `nextToken` has it where a real engine calls its own.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"net"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/golang/protobuf/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	protov2 "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "example.com/engine/gen/enginewire/v1"
)

const (
	slots, queue, window, vocabulary, eos = 8, 64, 4096, 1000, 2
	step, shutdown                        = 5 * time.Millisecond, 30 * time.Second
	revision                              = 2
	schemaDigest                          = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401"
)

var (
	life     = fmt.Sprint(time.Now().UnixNano())
	id       = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)
	services = []string{"enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"}
	info     = &pb.GetEngineInfoResponse{
		EngineName: "minimal-go", EngineVersion: "1", InstanceId: life, EngineLifetimeId: life,
		ContractRevision: revision, MinimumClientRevision: revision, MaximumClientRevision: revision,
		SchemaDigest: schemaDigest,
		Config: &pb.EngineConfig{
			Model: "hash", Role: pb.EngineRole_ENGINE_ROLE_AGGREGATED, VocabSize: vocabulary,
			ContextLength: proto.Uint32(window), MaxNumSeqs: proto.Uint64(slots),
			Capabilities: &pb.Capabilities{
				DefaultSampling: &pb.SamplingDefaults{Temperature: 1, TopP: 1, RepetitionPenalty: 1},
			},
			Limits: &pb.Limits{MaxNumQueuedReqs: proto.Uint32(queue)},
		},
	}
)

// refusal is a status alone, whose details say the reason and the field.
func refusal(code codes.Code, reason pb.ErrorReason, field, text string) error {
	retryable := code == codes.Unavailable || code == codes.ResourceExhausted
	detail := &pb.ErrorDetail{Reason: reason, Field: field, Retryable: retryable}
	refused, err := status.New(code, field+": "+text).WithDetails(detail)
	if err != nil {
		return err
	}
	return refused.Err()
}

func invalid(field, format string, values ...any) error {
	text := fmt.Sprintf(format, values...)
	return refusal(codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, field, text)
}

// checkFields holds each field that is set against its rule, which is an option of the field in the contract.
func checkFields(owner string, message protoreflect.Message) (err error) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		rule, path := ruleOf(field), owner+string(field.Name())
		least, most, size := math.Inf(-1), math.Inf(1), sizeOf(field, value)
		if rule.Min != nil {
			least = *rule.Min
		}
		if rule.Max != nil {
			most = *rule.Max
		} else if rule.TokenCount {
			most = vocabulary
		} else if rule.Bound != nil {
			most = float64(*rule.Bound)
		}
		isInside := size >= least && size <= most && !(rule.AboveMin && size == least)
		switch {
		case !isInside:
			err = invalid(path, "got %g, allowed %g..%g", size, least, most)
		case rule.Capability != "" && (rule.Neutral == nil || *rule.Neutral != size):
			text := rule.Capability + " is not advertised"
			err = refusal(codes.Unimplemented, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, path, text)
		case rule.TokenIds:
			err = checkVocabulary(path, value.List())
		case field.Message() != nil && !field.IsList() && !field.IsMap():
			err = checkFields(path+".", value.Message())
		}
		return err == nil
	})
	return err
}

func ruleOf(field protoreflect.FieldDescriptor) *pb.FieldRule {
	if rule := protov2.GetExtension(field.Options(), pb.E_Rule).(*pb.FieldRule); rule != nil {
		return rule
	}
	return &pb.FieldRule{}
}

func checkVocabulary(path string, tokens protoreflect.List) error {
	for i := 0; i < tokens.Len(); i++ {
		if token := tokens.Get(i).Uint(); token >= vocabulary {
			return invalid(path, "got %d, which is not in the vocabulary", token)
		}
	}
	return nil
}

// sizeOf is a number, or the length of a list and a text.
func sizeOf(field protoreflect.FieldDescriptor, value protoreflect.Value) float64 {
	if field.IsList() {
		return float64(value.List().Len())
	}
	switch content := reflect.ValueOf(value.Interface()); {
	case content.CanFloat():
		return content.Float()
	case content.CanInt():
		return float64(content.Int())
	case content.CanUint():
		return float64(content.Uint())
	case field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind:
		return float64(content.Len())
	case field.Kind() == protoreflect.BoolKind:
		return 1
	}
	return 0
}

// engine has the requests that are live, in the order of their arrival: the first ones run, the others wait.
type engine struct {
	pb.UnimplementedEngineServiceServer
	pb.UnimplementedDiscoveryServiceServer
	health *health.Server

	mutex    sync.Mutex
	live     []*pb.GenerateRequest
	isClosed bool
	deadline time.Time // Of the drain.
	drained  pb.DrainState
}

// admit puts a request behind those that are live, or says why not.
func (e *engine) admit(generate *pb.GenerateRequest) error {
	request, stop := generate.Request, generate.GetRequest().GetStopConditions()
	if err := checkFields("", request.ProtoReflect()); err != nil {
		return err
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	count, least := len(request.GetTokenIds()), int(stop.GetMinTokens())
	switch {
	case !id.MatchString(generate.RequestId):
		return invalid("request_id", "allowed %s", id)
	case request == nil:
		return invalid("request", "must be set")
	case request.Model != "" && request.Model != info.Config.Model:
		return refusal(codes.NotFound, pb.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND, "model", "no such model here")
	case count == 0:
		return invalid("token_ids", "must not be empty")
	case stop != nil && stop.MaxTokens != nil && least > int(*stop.MaxTokens):
		return invalid("stop_conditions.min_tokens", "got %d, allowed %d", least, *stop.MaxTokens)
	case count+least > window || count == window:
		text := fmt.Sprintf("got %d of %d", count, window)
		return refusal(codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_CONTEXT_EXCEEDED, "token_ids", text)
	case e.isClosed:
		return refusal(codes.Unavailable, pb.ErrorReason_ERROR_REASON_DRAINING, "", "the server is draining")
	case e.find(generate.RequestId) != nil:
		return refusal(codes.AlreadyExists, pb.ErrorReason_ERROR_REASON_DUPLICATE_ID, "request_id", "is live")
	case len(e.live) >= slots+queue:
		return refusal(codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_QUEUE_FULL, "", "the queue is full")
	}
	e.live = append(e.live, generate)
	return nil
}

func (e *engine) find(requestID string) *pb.GenerateRequest {
	for _, generate := range e.live {
		if generate.RequestId == requestID {
			return generate
		}
	}
	return nil
}

// place is how many live requests are before this one, or -1 when it has ended.
func (e *engine) place(generate *pb.GenerateRequest) int {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for i, other := range e.live {
		if other == generate {
			return i
		}
	}
	return -1
}

// remove takes a request out of the engine, unless that has happened.
func (e *engine) remove(generate *pb.GenerateRequest) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.drop(generate)
}

func (e *engine) drop(generate *pb.GenerateRequest) {
	for i, other := range e.live {
		if other == generate {
			e.live = append(e.live[:i:i], e.live[i+1:]...)
			return
		}
	}
}

func nextToken(prompt []uint32, done uint32) uint32 {
	hash := uint32(2166136261)
	for _, token := range append(prompt[:len(prompt):len(prompt)], done) {
		hash = (hash ^ token) * 16777619
	}
	return 3 + (hash^hash>>15)%(vocabulary-3)
}

// Generate sends a token per step while the request is among the first ones, until something ends it.
func (e *engine) Generate(generate *pb.GenerateRequest, stream pb.EngineService_GenerateServer) error {
	if err := e.admit(generate); err != nil {
		return err
	}
	defer e.remove(generate) // Also after a deadline and a lost connection.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	for done := uint32(0); ; {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-ticker.C:
		}
		place := e.place(generate)
		if place >= slots {
			continue
		}
		output := &pb.LLMEngineOutput{FirstOutputPosition: done}
		response := &pb.GenerateResponse{Output: output, RequestId: generate.RequestId}
		if done == 0 {
			response.EngineLifetimeId = life
		}
		if place < 0 {
			output.FinishReason = pb.FinishReason_FINISH_REASON_CANCELLED
		} else {
			done++
			addToken(output, generate.Request, done)
		}
		if output.FinishReason != 0 {
			e.remove(generate)
			size := uint32(len(generate.Request.TokenIds))
			output.CompletionUsage = &pb.CompletionUsage{
				PromptTokens: size, CompletionTokens: done, TotalTokens: size + done,
			}
		}
		if err := stream.Send(response); err != nil || output.FinishReason != 0 {
			return err
		}
	}
}

// addToken puts the next token into the output, and what ends the answer with it. A hidden stop wins.
func addToken(output *pb.LLMEngineOutput, request *pb.PreprocessedRequest, done uint32) {
	stop, size := request.GetStopConditions(), uint32(len(request.TokenIds))
	token := nextToken(request.TokenIds, done)
	output.TokenIds = []uint32{token}
	most := window - size
	if stop != nil && stop.MaxTokens != nil && *stop.MaxTokens < most {
		most = *stop.MaxTokens
	} else if request.IsProbe && (stop == nil || stop.MaxTokens == nil) {
		most = 1
	}
	ends := append([]uint32{eos}, stop.GetStopTokenIdsHidden()...)
	if len(request.EosTokenIds) > 0 {
		ends = append(ends[1:], request.EosTokenIds...)
	}
	mayStop := done >= stop.GetMinTokens()
	switch {
	case mayStop && !stop.GetIgnoreEos() && contains(ends, token):
		output.FinishReason = pb.FinishReason_FINISH_REASON_EOS
	case mayStop && (contains(stop.GetStopTokenIds(), token) || contains(stop.GetStopTokenIdsVisible(), token)):
		output.FinishReason = pb.FinishReason_FINISH_REASON_STOP
		output.StopMatch = &pb.StopMatch{Match: &pb.StopMatch_TokenId{TokenId: token}}
	case done == most:
		output.FinishReason = pb.FinishReason_FINISH_REASON_LENGTH
	}
}

func contains(tokens []uint32, token uint32) bool {
	for _, other := range tokens {
		if other == token {
			return true
		}
	}
	return false
}

func (e *engine) Abort(_ context.Context, request *pb.AbortRequest) (*pb.AbortResponse, error) {
	if request.All == (len(request.RequestIds) > 0) {
		return nil, invalid("request_ids", "either these or all")
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	ids := request.RequestIds
	if request.All {
		for _, generate := range e.live {
			ids = append(ids, generate.RequestId)
		}
	}
	response := &pb.AbortResponse{}
	for _, requestID := range ids {
		result := &pb.AbortResult{RequestId: requestID, Outcome: pb.AbortOutcome_ABORT_OUTCOME_UNKNOWN}
		if generate := e.find(requestID); generate != nil {
			e.drop(generate)
			result.Outcome = pb.AbortOutcome_ABORT_OUTCOME_ABORTED
		}
		response.Results = append(response.Results, result)
	}
	return response, nil
}

func (e *engine) Drain(request *pb.DrainRequest, stream pb.EngineService_DrainServer) error {
	limit := shutdown
	if request.Deadline != nil {
		limit = request.Deadline.AsDuration()
	}
	if limit < 0 {
		return invalid("deadline", "got %s, allowed 0 or more", limit)
	}
	e.beginDrain(limit)
	for {
		state, running := e.drainState()
		if err := stream.Send(&pb.DrainResponse{State: state, Running: running}); err != nil {
			return err
		}
		if state != pb.DrainState_DRAIN_STATE_DRAINING {
			return nil
		}
		time.Sleep(step)
	}
}

// beginDrain begins a drain or joins it: of several deadlines the earliest counts.
func (e *engine) beginDrain(limit time.Duration) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if deadline := time.Now().Add(limit); !e.isClosed || deadline.Before(e.deadline) {
		e.deadline = deadline
	}
	e.isClosed = true
	for _, name := range services {
		e.health.SetServingStatus(name, healthpb.HealthCheckResponse_NOT_SERVING)
	}
}

// drainState ends the drain when nothing is live or its time is over.
func (e *engine) drainState() (pb.DrainState, uint32) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.drained == 0 {
		switch {
		case len(e.live) == 0:
			e.drained = pb.DrainState_DRAIN_STATE_DRAINED
		case time.Now().Before(e.deadline):
			return pb.DrainState_DRAIN_STATE_DRAINING, uint32(len(e.live))
		default:
			e.drained, e.live = pb.DrainState_DRAIN_STATE_TIMED_OUT, nil
		}
	}
	return e.drained, 0
}

func (e *engine) GetEngineInfo(context.Context, *pb.GetEngineInfoRequest) (*pb.GetEngineInfoResponse, error) {
	return info, nil
}

func (e *engine) GetLoad(context.Context, *pb.GetLoadRequest) (*pb.GetLoadResponse, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	load := &pb.Load{State: pb.EngineState_ENGINE_STATE_READY, EngineLifetimeId: life, Running: uint32(len(e.live))}
	if e.isClosed {
		load.State = pb.EngineState_ENGINE_STATE_DRAINING
	}
	if load.Running > slots {
		load.Running, load.Waiting = slots, load.Running-slots
	}
	return &pb.GetLoadResponse{Load: load}, nil
}

// shutDown drains after the first signal; the next one ends the drain.
func (e *engine) shutDown(server *grpc.Server) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	<-signals
	e.beginDrain(shutdown)
	for state, _ := e.drainState(); state == pb.DrainState_DRAIN_STATE_DRAINING; state, _ = e.drainState() {
		select {
		case <-signals:
			e.beginDrain(0)
		case <-time.After(step):
		}
	}
	time.AfterFunc(time.Second, server.Stop) // A watch of health never ends on its own.
	server.GracefulStop()
}

func main() {
	network, address := "tcp", os.Args[1]
	if path := strings.TrimPrefix(address, "unix:"); path != address {
		network, address = "unix", path
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	server, e := grpc.NewServer(), &engine{health: health.NewServer()}
	pb.RegisterEngineServiceServer(server, e)
	pb.RegisterDiscoveryServiceServer(server, e)
	healthpb.RegisterHealthServer(server, e.health)
	for _, name := range services {
		e.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	go e.shutDown(server)
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
