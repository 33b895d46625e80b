package enginewire

import (
	"context"
	"fmt"
	"strings"

	"github.com/golang/protobuf/proto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/engine/gen/enginewire/v1"
)

var codeOf = map[pb.ErrorReason]codes.Code{
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:   codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_CONTEXT_EXCEEDED:  codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_UNSUPPORTED:       codes.Unimplemented,
	pb.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND:   codes.NotFound,
	pb.ErrorReason_ERROR_REASON_DUPLICATE_ID:      codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_QUEUE_FULL:        codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_KV_EXHAUSTED:      codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_ROLE_MISMATCH:     codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_REVISION_MISMATCH: codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_DRAINING:          codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_NOT_STARTED:       codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_ENGINE_DEAD:       codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED: codes.DeadlineExceeded,
	pb.ErrorReason_ERROR_REASON_INTERNAL:          codes.Internal,
	pb.ErrorReason_ERROR_REASON_CANCELLED:         codes.Canceled,
}

// Failure is an error that an RPC returns: a status whose details say the reason and the field.
type Failure struct {
	Reason pb.ErrorReason
	Field  string
	Text   string
	Facts  map[string]string
}

// Invalid is the failure of a field with a value that no server may accept.
func Invalid(field, text string) *Failure {
	return &Failure{Reason: pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, Field: field, Text: text}
}

// Draining is the failure of a request that comes after a drain has begun.
func Draining() *Failure {
	return &Failure{Reason: pb.ErrorReason_ERROR_REASON_DRAINING, Text: "the server is draining"}
}

// DuplicateID is the failure of a request whose id is that of a live one.
func DuplicateID() *Failure {
	return &Failure{Reason: pb.ErrorReason_ERROR_REASON_DUPLICATE_ID, Field: "request_id", Text: "is live"}
}

// QueueFull is the failure of a request that finds so many others waiting.
func QueueFull(waiting, limit int) *Failure {
	facts := map[string]string{"queue_depth": fmt.Sprint(waiting), "limit": fmt.Sprint(limit)}
	return &Failure{Reason: pb.ErrorReason_ERROR_REASON_QUEUE_FULL, Text: "the queue is full", Facts: facts}
}

func (f *Failure) Error() string {
	if f.Field == "" {
		return f.Text
	}
	return f.Field + ": " + f.Text
}

func (f *Failure) code() codes.Code {
	if code, isKnown := codeOf[f.Reason]; isKnown {
		return code
	}
	return codes.Internal
}

func (f *Failure) isRetryable() bool {
	return f.code() == codes.Unavailable || f.Reason == pb.ErrorReason_ERROR_REASON_QUEUE_FULL
}

// GRPCStatus is what grpc-go sends for this error.
func (f *Failure) GRPCStatus() *status.Status {
	name := strings.TrimPrefix(f.Reason.String(), "ERROR_REASON_")
	detail := &pb.ErrorDetail{Reason: f.Reason, Field: f.Field, Retryable: f.isRetryable(), Metadata: f.Facts}
	details := []proto.Message{detail, &errdetails.ErrorInfo{Reason: name, Domain: "enginewire", Metadata: f.Facts}}
	if f.Field != "" {
		violations := []*errdetails.BadRequest_FieldViolation{{Field: f.Field, Description: f.Error()}}
		details = append(details, &errdetails.BadRequest{FieldViolations: violations})
	}
	if f.isRetryable() {
		detail.RetryAfter = &durationpb.Duration{Seconds: 1}
		details = append(details, &errdetails.RetryInfo{RetryDelay: detail.RetryAfter})
	}
	plain := status.New(f.code(), f.Error())
	if full, err := plain.WithDetails(details...); err == nil {
		return full
	}
	return plain
}

// onWire makes failures of the errors of a context. It repeats retry_after in the trailer that gRPC's own retry policy
// obeys.
func onWire(ctx context.Context, err error) error {
	switch err {
	case context.Canceled:
		return &Failure{Reason: pb.ErrorReason_ERROR_REASON_CANCELLED, Text: "the caller has gone"}
	case context.DeadlineExceeded:
		return &Failure{Reason: pb.ErrorReason_ERROR_REASON_DEADLINE_EXCEEDED, Text: "the deadline has passed"}
	}
	if failure, isFailure := err.(*Failure); isFailure && failure.isRetryable() {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "1000"))
	}
	return err
}
