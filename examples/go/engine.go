package main

import (
	pb "github.com/enginewire/enginewire/gen/go/enginewire/v1"
)

// The engine: a queue, eight slots, and one token per running sequence and step. The next token is a hash of
// prompt and position. Knows nothing about gRPC, and has no lock: its owner has one.

const (
	vocabSize       = 1000
	eos             = 2
	firstPlainToken = 3
	contextLength   = 4096
	maxRunning      = 8
	maxWaiting      = 256
)

type end struct {
	why   pb.FinishReason
	token *uint32
}

type sequence struct {
	promptHash   uint32
	promptTokens uint32
	maxTokens    uint32
	minTokens    uint32
	visibleStops map[uint32]bool
	hiddenStops  map[uint32]bool
	generated    uint32
	// What the reader has not seen yet; changed says that there is something.
	unread  []uint32
	end     *end
	changed chan struct{}
}

type engine struct {
	steps, tokensGenerated, finished uint64
	running, waiting                 []*sequence
}

// hashOf is FNV-1a over the prompt.
func hashOf(prompt []uint32) uint32 {
	hash := uint32(2166136261)
	for _, id := range prompt {
		hash = (hash ^ id) * 16777619
	}
	return hash
}

// nextToken is murmur's finalizer over hash and position.
func nextToken(promptHash, position uint32) uint32 {
	hash := promptHash + position*0x9e3779b9
	hash = (hash ^ hash>>16) * 0x85ebca6b
	hash = (hash ^ hash>>13) * 0xc2b2ae35
	return firstPlainToken + (hash^hash>>16)%(vocabSize-firstPlainToken)
}

func (e *engine) live() int { return len(e.running) + len(e.waiting) }

// remove frees what the sequence holds. False when it had ended before.
func (e *engine) remove(s *sequence, why *end) bool {
	if !take(&e.running, s) && !take(&e.waiting, s) {
		return false
	}
	e.finished++
	s.end = why
	s.notify()
	return true
}

func (e *engine) step() {
	for len(e.running) < maxRunning && len(e.waiting) > 0 {
		e.running = append(e.running, e.waiting[0])
		e.waiting = e.waiting[1:]
	}
	if len(e.running) > 0 {
		e.steps++
	}
	for _, s := range append([]*sequence(nil), e.running...) {
		token := nextToken(s.promptHash, s.generated)
		s.generated++
		e.tokensGenerated++
		s.unread = append(s.unread, token)
		s.notify()
		if why := s.endAt(token); why != nil {
			e.remove(s, why)
		}
	}
}

// endAt says why token, the newest one, is the last one. Hidden stops win over visible ones.
func (s *sequence) endAt(token uint32) *end {
	mayStop := s.generated >= s.minTokens
	switch {
	case mayStop && s.hiddenStops[token]:
		return &end{why: pb.FinishReason_FINISH_REASON_EOS}
	case mayStop && s.visibleStops[token]:
		return &end{why: pb.FinishReason_FINISH_REASON_STOP, token: &token}
	case s.generated >= s.maxTokens:
		return &end{why: pb.FinishReason_FINISH_REASON_LENGTH}
	}
	return nil
}

func (s *sequence) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func take(sequences *[]*sequence, wanted *sequence) bool {
	for i, s := range *sequences {
		if s == wanted {
			*sequences = append((*sequences)[:i:i], (*sequences)[i+1:]...)
			return true
		}
	}
	return false
}
