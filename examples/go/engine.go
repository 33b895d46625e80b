package main

import (
	"fmt"
	"math/rand"
	"sync"
	"time"

	pb "example.com/engine/gen/enginewire/v1"
)

// The engine: eight slots, a queue, and one token per running request and step. The next token is a hash of prompt
// and position. Also what a server is doing: ready, draining, stopped. One lock, which each step takes once.

const (
	vocabSize      = 1000
	eos            = 2
	contextLength  = 4096
	maxRunning     = 8
	maxWaiting     = 256
	stepTime       = 4 * time.Millisecond
	rememberedTime = 10 * time.Second
	mostRemembered = 4096
	cancelled      = pb.FinishReason_FINISH_REASON_CANCELLED
)

type sequence struct {
	id                              string
	promptTokens, hash              uint32
	maxTokens, minTokens, generated uint32
	visibleStops, hiddenStops       map[uint32]bool
	unread                          []uint32 // What the reader has not seen yet.
	end                             pb.FinishReason
	changed                         chan struct{}
}

func newSequence(id string, request *pb.PreprocessedRequest) *sequence {
	stop := request.GetStopConditions()
	room := uint32(contextLength - len(request.TokenIds))
	s := &sequence{
		id:           id,
		promptTokens: uint32(len(request.TokenIds)),
		hash:         2166136261,
		maxTokens:    room,
		minTokens:    stop.GetMinTokens(),
		visibleStops: setOf(append(stop.GetStopTokenIds(), stop.GetStopTokenIdsVisible()...)...),
		hiddenStops:  setOf(append(stop.GetStopTokenIdsHidden(), request.EosTokenIds...)...),
		changed:      make(chan struct{}, 1),
	}
	for _, token := range request.TokenIds {
		s.hash = (s.hash ^ token) * 16777619
	}
	if request.IsProbe {
		s.maxTokens = 1
	}
	if stop != nil && stop.MaxTokens != nil {
		s.maxTokens = *stop.MaxTokens
	}
	if s.maxTokens > room {
		s.maxTokens = room
	}
	if len(request.EosTokenIds) == 0 {
		s.hiddenStops[eos] = true
	}
	if stop.GetIgnoreEos() {
		s.hiddenStops = nil
	}
	return s
}

// next generates a token, and ends the sequence when it is the last one. A hidden stop wins over a visible one.
func (s *sequence) next() pb.FinishReason {
	mixed := s.hash + s.generated*0x9e3779b9
	mixed = (mixed ^ mixed>>16) * 0x85ebca6b
	mixed = (mixed ^ mixed>>13) * 0xc2b2ae35
	token := 3 + (mixed^mixed>>16)%(vocabSize-3)
	s.generated++
	s.unread = append(s.unread, token)
	s.notify()
	mayStop := s.generated >= s.minTokens
	switch {
	case mayStop && s.hiddenStops[token]:
		return pb.FinishReason_FINISH_REASON_EOS
	case mayStop && s.visibleStops[token]:
		return pb.FinishReason_FINISH_REASON_STOP
	case s.generated >= s.maxTokens:
		return pb.FinishReason_FINISH_REASON_LENGTH
	}
	return pb.FinishReason_FINISH_REASON_UNSPECIFIED
}

func (s *sequence) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func setOf[T comparable](entries ...T) map[T]bool {
	set := map[T]bool{}
	for _, entry := range entries {
		set[entry] = true
	}
	return set
}

// past is what the next abort of an id is told.
type past struct {
	outcome pb.AbortOutcome
	since   time.Time
}

type engine struct {
	lifetimeID string
	onState    func(pb.EngineState)

	mutex              sync.Mutex
	state              pb.EngineState
	live               []*sequence // In the order of arrival: the first ones run, the others wait.
	past               map[string]past
	counts             pb.Load
	isCleaning         bool
	isDraining         bool
	graceEnd, deadline time.Time
	drained            pb.DrainState
}

func newEngine(onState func(pb.EngineState)) *engine {
	random := rand.New(rand.NewSource(time.Now().UnixNano()))
	never := time.Now().AddDate(100, 0, 0)
	e := &engine{
		lifetimeID: fmt.Sprintf("%016x", random.Uint64()),
		onState:    onState,
		state:      pb.EngineState_ENGINE_STATE_READY,
		past:       map[string]past{},
		graceEnd:   never,
		deadline:   never,
	}
	go e.run()
	return e
}

func (e *engine) run() {
	for range time.Tick(stepTime) {
		e.mutex.Lock()
		e.step()
		e.drainState()
		e.mutex.Unlock()
	}
}

func (e *engine) step() {
	running := append([]*sequence(nil), e.live[:len(e.live)-e.waiting()]...)
	if len(running) > 0 {
		e.counts.Step++
	}
	for _, s := range running {
		e.counts.TokensGenerated++
		if why := s.next(); why != 0 {
			e.end(s, why)
		}
	}
}

// admit accepts the request, or returns a failure and nothing has happened.
func (e *engine) admit(s *sequence) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	switch {
	case e.isCleaning:
		return failed("ENGINE_DEAD", "", "the engine was cleaned up")
	case e.isClosed():
		return failed("DRAINING", "", "the server is draining")
	case e.find(s.id) != nil:
		return failed("DUPLICATE_ID", "request_id", "is live")
	case e.recall(s.id) == pb.AbortOutcome_ABORT_OUTCOME_UNKNOWN:
		delete(e.past, s.id)
		return failed("CANCELLED", "request_id", "aborted before it arrived")
	case len(e.live) >= maxRunning+maxWaiting:
		full := failed("QUEUE_FULL", "", "the queue is full")
		full.facts = map[string]string{"queue_depth": fmt.Sprint(e.waiting()), "limit": fmt.Sprint(maxWaiting)}
		return full
	}
	e.live = append(e.live, s)
	return nil
}

// read takes what the reader has not seen yet.
func (e *engine) read(s *sequence) ([]uint32, pb.FinishReason) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	tokens := s.unread
	s.unread = nil
	return tokens, s.end
}

// remove ends a request whose reader has gone, if it is live.
func (e *engine) remove(s *sequence) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if s.end == 0 {
		e.end(s, cancelled)
	}
}

func (e *engine) abort(id string) pb.AbortOutcome {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if s := e.find(id); s != nil {
		e.end(s, cancelled)
		return pb.AbortOutcome_ABORT_OUTCOME_ABORTED
	}
	if e.recall(id) == 0 {
		e.remember(id, pb.AbortOutcome_ABORT_OUTCOME_UNKNOWN)
	}
	return e.recall(id)
}

func (e *engine) liveIDs() []string {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	ids := []string{}
	for _, s := range e.live {
		ids = append(ids, s.id)
	}
	return ids
}

func (e *engine) load() *pb.Load {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	waiting := e.waiting()
	load := &pb.Load{
		Running:          uint32(len(e.live) - waiting),
		Waiting:          uint32(waiting),
		Step:             e.counts.Step,
		RequestsFinished: e.counts.RequestsFinished,
		TokensGenerated:  e.counts.TokensGenerated,
		State:            e.state,
		EngineLifetimeId: e.lifetimeID,
	}
	for _, s := range e.live[len(e.live)-waiting:] {
		load.WaitingTokens += uint64(s.promptTokens)
	}
	return load
}

// drain begins the drain or joins it. Of several deadlines the earliest wins; the grace is that of the first caller.
func (e *engine) drain(deadline, grace time.Duration) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.deadline = earlier(e.deadline, time.Now().Add(deadline))
	if !e.isDraining {
		e.isDraining, e.graceEnd = true, time.Now().Add(grace)
	}
	e.leaveReady()
}

func (e *engine) progress() *pb.DrainResponse {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	state, waiting := e.drainState(), e.waiting()
	return &pb.DrainResponse{State: state, Running: uint32(len(e.live) - waiting), Waiting: uint32(waiting)}
}

// cleanup returns true when an earlier call had cleaned up.
func (e *engine) cleanup(abortInFlight bool) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.isCleaning = true
	e.leaveReady()
	if abortInFlight {
		e.abortAll()
	}
	for len(e.live) > 0 {
		e.mutex.Unlock()
		time.Sleep(stepTime)
		e.mutex.Lock()
	}
	wasClean := e.state == pb.EngineState_ENGINE_STATE_STOPPED
	e.state = pb.EngineState_ENGINE_STATE_STOPPED
	e.onState(e.state)
	return wasClean
}

func (e *engine) leaveReady() {
	if e.state == pb.EngineState_ENGINE_STATE_READY {
		e.state = pb.EngineState_ENGINE_STATE_DRAINING
		e.onState(e.state)
	}
}

func (e *engine) isClosed() bool { return !time.Now().Before(earlier(e.graceEnd, e.deadline)) }

func (e *engine) drainState() pb.DrainState {
	switch {
	case e.drained != 0:
	case !e.isClosed():
		return pb.DrainState_DRAIN_STATE_GRACE
	case len(e.live) == 0:
		e.drained = pb.DrainState_DRAIN_STATE_DRAINED
	case time.Now().Before(e.deadline):
		return pb.DrainState_DRAIN_STATE_DRAINING
	default:
		e.abortAll()
		e.drained = pb.DrainState_DRAIN_STATE_TIMED_OUT
	}
	return e.drained
}

func (e *engine) abortAll() {
	for len(e.live) > 0 {
		e.end(e.live[0], cancelled)
	}
}

func (e *engine) end(ended *sequence, why pb.FinishReason) {
	for i, s := range e.live {
		if s == ended {
			e.live = append(e.live[:i:i], e.live[i+1:]...)
			break
		}
	}
	e.counts.RequestsFinished++
	e.remember(ended.id, pb.AbortOutcome_ABORT_OUTCOME_FINISHED)
	ended.end = why
	ended.notify()
}

func (e *engine) waiting() int {
	if len(e.live) > maxRunning {
		return len(e.live) - maxRunning
	}
	return 0
}

func (e *engine) find(id string) *sequence {
	for _, s := range e.live {
		if s.id == id {
			return s
		}
	}
	return nil
}

// remember: an unknown id that arrives after its abort is refused.
func (e *engine) remember(id string, outcome pb.AbortOutcome) {
	for old, entry := range e.past {
		if time.Since(entry.since) > rememberedTime || len(e.past) >= mostRemembered {
			delete(e.past, old)
		}
	}
	e.past[id] = past{outcome, time.Now()}
}

func (e *engine) recall(id string) pb.AbortOutcome {
	if entry := e.past[id]; time.Since(entry.since) < rememberedTime {
		return entry.outcome
	}
	return pb.AbortOutcome_ABORT_OUTCOME_UNSPECIFIED
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
