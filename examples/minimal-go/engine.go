// The smallest engine of the contract: `build/engine 127.0.0.1:50051`, or `unix:/run/engine.sock`.
// Its model is a hash: `nextToken` has it where a real engine calls its own, which it does not do under the lock.
package main

import (
	"context"
	"log"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"example.com/engine/enginewire"
	pb "example.com/engine/gen/enginewire/v1"
)

const slots, queue, step = 8, 64, 5 * time.Millisecond

var config = &pb.EngineConfig{
	Model: "hash", Role: pb.EngineRole_ENGINE_ROLE_AGGREGATED, VocabSize: 1000, EosTokenIds: []uint32{2},
	ContextLength: proto.Uint32(4096), MaxNumSeqs: proto.Uint64(slots),
	Capabilities: &pb.Capabilities{DefaultSampling: &pb.SamplingDefaults{Temperature: 1, TopP: 1, RepetitionPenalty: 1}},
	Limits:       &pb.Limits{MaxNumQueuedReqs: proto.Uint32(queue)},
}

// engine has the requests that are live: the first ones run, the others wait.
type engine struct {
	enginewire.Base

	mutex    sync.Mutex
	live     map[string]int // The number of each request, by its id.
	arrivals int
	state    pb.EngineState
	drained  pb.DrainState // What a drain ends with.
}

func nextToken(prompt []uint32, position uint32) uint32 {
	hash := 2166136261 ^ position*0x9e3779b9
	for _, token := range prompt {
		hash = (hash ^ token) * 16777619
	}
	return 3 + (hash^hash>>15)%(config.VocabSize-3)
}

// Generate sends a token per step while the request is among the first ones, until something ends it.
func (e *engine) Generate(generate *pb.GenerateRequest, stream pb.EngineService_GenerateServer) error {
	if err := enginewire.Check(generate, config); err != nil {
		return err
	}
	id := generate.RequestId
	number, err := e.admit(id)
	if err != nil {
		return err
	}
	defer e.leave(id, number) // Also after a deadline and a lost connection.
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	answer := enginewire.NewAnswer(generate, config)
	return enginewire.Send(stream, answer, ticker.C, func() ([]uint32, pb.FinishReason) {
		e.mutex.Lock()
		defer e.mutex.Unlock()
		switch {
		case e.live[id] != number: // An abort or a drain has ended it.
			return nil, pb.FinishReason_FINISH_REASON_CANCELLED
		case e.place(number) >= slots:
			return nil, pb.FinishReason_FINISH_REASON_UNSPECIFIED
		}
		token := nextToken(generate.Request.TokenIds, answer.Generated())
		why := answer.EndAt(token)
		if why != pb.FinishReason_FINISH_REASON_UNSPECIFIED {
			delete(e.live, id)
		}
		return []uint32{token}, why
	})
}

// admit gives a request its number, or says why it is not accepted.
func (e *engine) admit(id string) (int, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	switch {
	case e.state != pb.EngineState_ENGINE_STATE_READY:
		return 0, enginewire.Draining()
	case e.live[id] > 0:
		return 0, enginewire.DuplicateID()
	case len(e.live) >= slots+queue:
		return 0, enginewire.QueueFull(len(e.live)-slots, queue)
	}
	e.arrivals++
	e.live[id] = e.arrivals
	return e.arrivals, nil
}

// place is how many of the live requests came before this one.
func (e *engine) place(number int) (place int) {
	for _, other := range e.live {
		if other < number {
			place++
		}
	}
	return place
}

// leave takes a request out of the engine, unless that has happened; its id may have another number by now.
func (e *engine) leave(id string, number int) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.live[id] == number {
		delete(e.live, id)
	}
}

func (e *engine) Abort(_ context.Context, request *pb.AbortRequest) (*pb.AbortResponse, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	ids := []string{}
	for id := range e.live {
		ids = append(ids, id)
	}
	return enginewire.Abort(request, ids, func(id string) pb.AbortOutcome {
		if e.live[id] == 0 {
			return pb.AbortOutcome_ABORT_OUTCOME_UNKNOWN
		}
		delete(e.live, id)
		return pb.AbortOutcome_ABORT_OUTCOME_ABORTED
	})
}

func (e *engine) Drain(request *pb.DrainRequest, stream pb.EngineService_DrainServer) error {
	return enginewire.Drain(request, stream, e)
}

// BeginDrain lets nothing in, and after the limit ends what is live. Of several limits the first to pass counts.
func (e *engine) BeginDrain(limit, _ time.Duration) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.state = pb.EngineState_ENGINE_STATE_DRAINING
	e.Health.BeginDrain()
	time.AfterFunc(limit, func() {
		e.mutex.Lock()
		defer e.mutex.Unlock()
		if len(e.live) > 0 {
			e.live, e.drained = nil, pb.DrainState_DRAIN_STATE_TIMED_OUT
		}
	})
}

// Progress is what the engine is doing, and how far a drain would be.
func (e *engine) Progress() (*pb.Load, pb.DrainState) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	load := &pb.Load{State: e.state, Running: uint32(len(e.live)), EngineLifetimeId: enginewire.LifetimeID}
	if load.Running > slots {
		load.Running, load.Waiting = slots, load.Running-slots
	}
	if len(e.live) > 0 {
		return load, pb.DrainState_DRAIN_STATE_DRAINING
	}
	return load, e.drained
}

func (e *engine) GetLoad(context.Context, *pb.GetLoadRequest) (*pb.GetLoadResponse, error) {
	load, _ := e.Progress()
	return &pb.GetLoadResponse{Load: load}, nil
}

func main() {
	e := &engine{
		Base: enginewire.NewBase("minimal-go", "1", config), live: map[string]int{},
		state: pb.EngineState_ENGINE_STATE_READY, drained: pb.DrainState_DRAIN_STATE_DRAINED,
	}
	if err := enginewire.Serve(os.Args[1], e); err != nil {
		log.Fatal(err)
	}
}
