package main

import (
	"sync"
	"time"

	"example.com/engine/enginewire"
	pb "example.com/engine/gen/enginewire/v1"
)

// The engine: eight slots, a queue, and one token per running request and step. The next token is a hash of prompt
// and position. Also what a server is doing: ready, draining, stopped. One lock, which each step takes once.

const (
	maxRunning     = 8
	maxWaiting     = 256
	stepTime       = 4 * time.Millisecond
	rememberedTime = 10 * time.Second
	mostRemembered = 4096
	cancelled      = pb.FinishReason_FINISH_REASON_CANCELLED
)

type sequence struct {
	id                 string
	promptTokens, hash uint32
	answer             *enginewire.Answer
	unread             []uint32 // What the reader has not seen yet.
	end                pb.FinishReason
	changed            chan struct{}
}

func newSequence(generate *pb.GenerateRequest) *sequence {
	prompt := generate.Request.TokenIds
	s := &sequence{
		id:           generate.RequestId,
		promptTokens: uint32(len(prompt)),
		hash:         2166136261,
		answer:       enginewire.NewAnswer(generate, config),
		changed:      make(chan struct{}, 1),
	}
	for _, token := range prompt {
		s.hash = (s.hash ^ token) * 16777619
	}
	return s
}

// next generates a token, and says why it is the last one, if it is.
func (s *sequence) next() pb.FinishReason {
	mixed := s.hash + s.answer.Generated()*0x9e3779b9
	mixed = (mixed ^ mixed>>16) * 0x85ebca6b
	mixed = (mixed ^ mixed>>13) * 0xc2b2ae35
	token := 3 + (mixed^mixed>>16)%(config.VocabSize-3)
	s.unread = append(s.unread, token)
	s.notify()
	return s.answer.EndAt(token)
}

func (s *sequence) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// past is what the next abort of an id is told.
type past struct {
	outcome pb.AbortOutcome
	since   time.Time
}

type engine struct {
	health *enginewire.Health

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

func newEngine(health *enginewire.Health) *engine {
	never := time.Now().AddDate(100, 0, 0)
	e := &engine{
		health:   health,
		state:    pb.EngineState_ENGINE_STATE_READY,
		past:     map[string]past{},
		graceEnd: never,
		deadline: never,
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
		return &enginewire.Failure{Reason: pb.ErrorReason_ERROR_REASON_ENGINE_DEAD, Text: "the engine was cleaned up"}
	case e.isClosed():
		return enginewire.Draining()
	case e.find(s.id) != nil:
		return enginewire.DuplicateID()
	case e.recall(s.id) == pb.AbortOutcome_ABORT_OUTCOME_UNKNOWN:
		delete(e.past, s.id)
		aborted := pb.ErrorReason_ERROR_REASON_CANCELLED
		return &enginewire.Failure{Reason: aborted, Field: "request_id", Text: "aborted before it arrived"}
	case len(e.live) >= maxRunning+maxWaiting:
		return enginewire.QueueFull(e.waiting(), maxWaiting)
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

// BeginDrain: of several deadlines the earliest wins; the grace is that of the first caller.
func (e *engine) BeginDrain(deadline, grace time.Duration) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.deadline = earlier(e.deadline, time.Now().Add(deadline))
	if !e.isDraining {
		e.isDraining, e.graceEnd = true, time.Now().Add(grace)
	}
	e.leaveReady()
}

func (e *engine) Progress() (*pb.Load, pb.DrainState) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	drained := e.drainState()
	return e.load(), drained
}

func (e *engine) load() *pb.Load {
	waiting := e.waiting()
	load := &pb.Load{
		Running:          uint32(len(e.live) - waiting),
		Waiting:          uint32(waiting),
		Step:             e.counts.Step,
		RequestsFinished: e.counts.RequestsFinished,
		TokensGenerated:  e.counts.TokensGenerated,
		State:            e.state,
		EngineLifetimeId: enginewire.LifetimeID,
	}
	for _, s := range e.live[len(e.live)-waiting:] {
		load.WaitingTokens += uint64(s.promptTokens)
	}
	return load
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
	e.health.Shutdown()
	return wasClean
}

func (e *engine) leaveReady() {
	if e.state == pb.EngineState_ENGINE_STATE_READY {
		e.state = pb.EngineState_ENGINE_STATE_DRAINING
		e.health.BeginDrain()
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
