package main

import (
	"fmt"
	"math/rand"
	"sync"
	"time"

	pb "github.com/enginewire/enginewire/gen/go/enginewire/v1"
)

// What the server is doing: ready, draining, stopped; which requests are live; and the one drain.
// Everything is behind one lock, which the step loop takes once per step.

const (
	stepTime       = 4 * time.Millisecond
	rememberedTime = 10 * time.Second
	mostRemembered = 4096
)

type lifecycle struct {
	lifetimeID string
	onNotReady func(isStopped bool)

	mutex       sync.Mutex
	engine      engine
	state       pb.EngineState
	isCleaning  bool
	sequences   map[string]*sequence
	ended       map[string]time.Time
	earlyAborts map[string]time.Time
	graceEnd    time.Time
	deadline    time.Time
	drained     pb.DrainState
}

func newLifecycle(onNotReady func(isStopped bool)) *lifecycle {
	l := &lifecycle{
		lifetimeID:  fmt.Sprintf("%016x", rand.New(rand.NewSource(time.Now().UnixNano())).Uint64()),
		onNotReady:  onNotReady,
		state:       pb.EngineState_ENGINE_STATE_READY,
		sequences:   map[string]*sequence{},
		ended:       map[string]time.Time{},
		earlyAborts: map[string]time.Time{},
	}
	go l.run()
	return l
}

func (l *lifecycle) run() {
	for range time.Tick(stepTime) {
		l.mutex.Lock()
		l.engine.step()
		l.forgetEnded()
		if !l.graceEnd.IsZero() {
			l.drainState()
		}
		l.mutex.Unlock()
	}
}

func (l *lifecycle) checkOpen() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.isCleaning {
		return &failure{reason: pb.ErrorReason_ERROR_REASON_ENGINE_DEAD, text: "the engine was cleaned up"}
	}
	if !l.graceEnd.IsZero() && !time.Now().Before(l.graceEnd) {
		return &failure{reason: pb.ErrorReason_ERROR_REASON_DRAINING, text: "the server is draining"}
	}
	return nil
}

// admit accepts the request, or returns a failure and nothing has happened.
func (l *lifecycle) admit(id string, s *sequence) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.forgetEnded()
	if l.sequences[id] != nil {
		return &failure{reason: pb.ErrorReason_ERROR_REASON_DUPLICATE_ID, field: "request_id", text: "is live"}
	}
	trim(l.earlyAborts)
	if _, isAborted := l.earlyAborts[id]; isAborted {
		delete(l.earlyAborts, id)
		return &failure{reason: pb.ErrorReason_ERROR_REASON_CANCELLED, field: "request_id", text: "aborted before it arrived"}
	}
	if l.engine.live() >= maxRunning+maxWaiting {
		facts := map[string]string{"queue_depth": fmt.Sprint(len(l.engine.waiting)), "limit": fmt.Sprint(maxWaiting)}
		return &failure{reason: pb.ErrorReason_ERROR_REASON_QUEUE_FULL, text: "the queue is full", facts: facts}
	}
	l.sequences[id] = s
	l.engine.waiting = append(l.engine.waiting, s)
	return nil
}

// read takes what the reader has not seen yet.
func (l *lifecycle) read(s *sequence) ([]uint32, *end) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	tokens := s.unread
	s.unread = nil
	return tokens, s.end
}

// leave ends a request whose reader has gone.
func (l *lifecycle) leave(s *sequence) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.engine.remove(s, cancelled())
	l.forgetEnded()
}

func (l *lifecycle) abort(id string) pb.AbortOutcome {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.forgetEnded()
	if s := l.sequences[id]; s != nil {
		l.engine.remove(s, cancelled())
		return pb.AbortOutcome_ABORT_OUTCOME_ABORTED
	}
	if _, hasEnded := l.ended[id]; hasEnded {
		return pb.AbortOutcome_ABORT_OUTCOME_FINISHED
	}
	l.earlyAborts[id] = time.Now()
	trim(l.earlyAborts)
	return pb.AbortOutcome_ABORT_OUTCOME_UNKNOWN
}

func (l *lifecycle) liveIDs() []string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.forgetEnded()
	ids := make([]string, 0, len(l.sequences))
	for id := range l.sequences {
		ids = append(ids, id)
	}
	return ids
}

func (l *lifecycle) load() *pb.Load {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	load := &pb.Load{
		Running:          uint32(len(l.engine.running)),
		Waiting:          uint32(len(l.engine.waiting)),
		Step:             l.engine.steps,
		RequestsFinished: l.engine.finished,
		TokensGenerated:  l.engine.tokensGenerated,
		State:            l.state,
		EngineLifetimeId: l.lifetimeID,
	}
	for _, s := range l.engine.waiting {
		load.WaitingTokens += uint64(s.promptTokens)
	}
	return load
}

// drain begins the drain or joins it. Of several deadlines the earliest wins.
func (l *lifecycle) drain(deadline, grace time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	now := time.Now()
	if end := now.Add(deadline); l.deadline.IsZero() || end.Before(l.deadline) {
		l.deadline = end
	}
	if l.graceEnd.IsZero() {
		l.graceEnd = now.Add(grace)
		l.leaveReady()
	}
}

func (l *lifecycle) progress() *pb.DrainResponse {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	state := l.drainState()
	return &pb.DrainResponse{State: state, Running: uint32(len(l.engine.running)), Waiting: uint32(len(l.engine.waiting))}
}

// cleanup returns true when an earlier call had cleaned up.
func (l *lifecycle) cleanup(abortInFlight bool) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.isCleaning = true
	l.leaveReady()
	if abortInFlight {
		l.abortAll()
	}
	for l.engine.live() > 0 {
		l.mutex.Unlock()
		time.Sleep(stepTime)
		l.mutex.Lock()
	}
	wasClean := l.state == pb.EngineState_ENGINE_STATE_STOPPED
	l.state = pb.EngineState_ENGINE_STATE_STOPPED
	l.onNotReady(true)
	return wasClean
}

// forgetEnded: requests that the engine has ended are no longer live.
func (l *lifecycle) forgetEnded() {
	for id, s := range l.sequences {
		if s.end != nil {
			delete(l.sequences, id)
			l.ended[id] = time.Now()
			trim(l.ended)
		}
	}
}

func (l *lifecycle) abortAll() {
	for _, s := range l.sequences {
		l.engine.remove(s, cancelled())
	}
	l.forgetEnded()
}

func (l *lifecycle) leaveReady() {
	if l.state == pb.EngineState_ENGINE_STATE_READY {
		l.state = pb.EngineState_ENGINE_STATE_DRAINING
		l.onNotReady(false)
	}
}

func (l *lifecycle) drainState() pb.DrainState {
	now := time.Now()
	switch {
	case l.drained != pb.DrainState_DRAIN_STATE_UNSPECIFIED:
	case now.Before(l.graceEnd) && now.Before(l.deadline):
		return pb.DrainState_DRAIN_STATE_GRACE
	case l.engine.live() == 0:
		l.drained = pb.DrainState_DRAIN_STATE_DRAINED
	case now.Before(l.deadline):
		return pb.DrainState_DRAIN_STATE_DRAINING
	default:
		l.drained = pb.DrainState_DRAIN_STATE_TIMED_OUT
		l.abortAll()
	}
	if now.Before(l.graceEnd) {
		l.graceEnd = now
	}
	return l.drained
}

func cancelled() *end { return &end{why: pb.FinishReason_FINISH_REASON_CANCELLED} }

// trim drops what is old, and any when there are too many.
func trim(ids map[string]time.Time) {
	for id, since := range ids {
		if time.Since(since) > rememberedTime || len(ids) > mostRemembered {
			delete(ids, id)
		}
	}
}
