package enginewire

import (
	"google.golang.org/grpc/metadata"

	pb "example.com/engine/gen/enginewire/v1"
)

// Answer is what one request gets: where its tokens end, and the messages that carry them. EndAt and Response may be
// called by different goroutines: what the reader has not seen yet is the caller's.
type Answer struct {
	requestID                              string
	promptTokens, least, most, count, sent uint32
	hidden, visible                        []uint32
}

// NewAnswer answers a request that Check has let through.
func NewAnswer(generate *pb.GenerateRequest, config *pb.EngineConfig) *Answer {
	request, stop := generate.Request, generate.Request.GetStopConditions()
	a := &Answer{
		requestID:    generate.RequestId,
		promptTokens: uint32(len(request.TokenIds)),
		least:        stop.GetMinTokens(),
		most:         uint32(roomAfter(len(request.TokenIds), config)),
		visible:      append(stop.GetStopTokenIds(), stop.GetStopTokenIdsVisible()...),
	}
	if stop != nil && stop.MaxTokens != nil {
		a.most = smaller(a.most, *stop.MaxTokens)
	} else if request.IsProbe {
		a.most = 1
	}
	eos := request.EosTokenIds
	if len(eos) == 0 {
		eos = config.EosTokenIds
	}
	if !stop.GetIgnoreEos() {
		a.hidden = append(stop.GetStopTokenIdsHidden(), eos...)
	}
	return a
}

// Generated is how many tokens were counted.
func (a *Answer) Generated() uint32 { return a.count }

// EndAt counts a token and says why it is the last one, if it is. A hidden stop wins over a visible one.
func (a *Answer) EndAt(token uint32) pb.FinishReason {
	a.count++
	mayStop := a.count >= a.least
	switch {
	case mayStop && contains(a.hidden, token):
		return pb.FinishReason_FINISH_REASON_EOS
	case mayStop && contains(a.visible, token):
		return pb.FinishReason_FINISH_REASON_STOP
	case a.count >= a.most:
		return pb.FinishReason_FINISH_REASON_LENGTH
	}
	return pb.FinishReason_FINISH_REASON_UNSPECIFIED
}

// Response is the message with the next tokens, and with what ends the answer, if anything does.
func (a *Answer) Response(tokens []uint32, why pb.FinishReason) *pb.GenerateResponse {
	output := &pb.LLMEngineOutput{TokenIds: tokens, FirstOutputPosition: a.sent, FinishReason: why}
	response := &pb.GenerateResponse{Output: output, RequestId: a.requestID}
	if a.sent == 0 {
		response.EngineLifetimeId = LifetimeID
	}
	a.sent += uint32(len(tokens))
	if why == pb.FinishReason_FINISH_REASON_STOP {
		output.StopMatch = &pb.StopMatch{Match: &pb.StopMatch_TokenId{TokenId: tokens[len(tokens)-1]}}
	}
	if why != pb.FinishReason_FINISH_REASON_UNSPECIFIED {
		output.CompletionUsage = &pb.CompletionUsage{
			PromptTokens: a.promptTokens, CompletionTokens: a.sent, TotalTokens: a.promptTokens + a.sent,
		}
	}
	return response
}

// Send tells the caller that the request was accepted. Then it sends what next returns after every change, until
// the answer has ended or the caller has gone. An answer may change without having anything new.
func Send[T any](
	stream pb.EngineService_GenerateServer, answer *Answer, changes <-chan T, next func() ([]uint32, pb.FinishReason),
) error {
	if err := stream.SendHeader(metadata.Pairs("enginewire-lifetime-id", LifetimeID)); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changes:
		}
		tokens, why := next()
		if len(tokens) == 0 && why == pb.FinishReason_FINISH_REASON_UNSPECIFIED {
			continue
		}
		if err := stream.Send(answer.Response(tokens, why)); err != nil || why != 0 {
			return err
		}
	}
}

func smaller(a, b uint32) uint32 {
	if a < b {
		return a
	}
	return b
}
