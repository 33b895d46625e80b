package main

import (
	"context"
	"strings"

	"github.com/golang/protobuf/proto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/enginewire/enginewire/gen/go/enginewire/v1"
)

// Failures and how they travel: a gRPC status whose details hold an ErrorDetail and google.rpc's messages.

const reasonPrefix = "ERROR_REASON_"

var codeOf = map[pb.ErrorReason]codes.Code{
	pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:   codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_CONTEXT_EXCEEDED:  codes.InvalidArgument,
	pb.ErrorReason_ERROR_REASON_UNSUPPORTED:       codes.Unimplemented,
	pb.ErrorReason_ERROR_REASON_MODEL_NOT_FOUND:   codes.NotFound,
	pb.ErrorReason_ERROR_REASON_DUPLICATE_ID:      codes.AlreadyExists,
	pb.ErrorReason_ERROR_REASON_QUEUE_FULL:        codes.ResourceExhausted,
	pb.ErrorReason_ERROR_REASON_ROLE_MISMATCH:     codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_REVISION_MISMATCH: codes.FailedPrecondition,
	pb.ErrorReason_ERROR_REASON_DRAINING:          codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_ENGINE_DEAD:       codes.Unavailable,
	pb.ErrorReason_ERROR_REASON_CANCELLED:         codes.Canceled,
}

type failure struct {
	reason      pb.ErrorReason
	field, text string
	facts       map[string]string
}

func invalid(field, text string) error {
	return &failure{reason: pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, field: field, text: text}
}

func (f *failure) Error() string {
	if f.field == "" {
		return f.text
	}
	return f.field + ": " + f.text
}

func (f *failure) isRetryable() bool {
	return codeOf[f.reason] == codes.Unavailable || f.reason == pb.ErrorReason_ERROR_REASON_QUEUE_FULL
}

// GRPCStatus is what grpc-go sends for this error.
func (f *failure) GRPCStatus() *status.Status {
	detail := &pb.ErrorDetail{Reason: f.reason, Field: f.field, Retryable: f.isRetryable(), Metadata: f.facts}
	reason := strings.TrimPrefix(f.reason.String(), reasonPrefix)
	info := &errdetails.ErrorInfo{Reason: reason, Domain: "enginewire", Metadata: f.facts}
	details := []proto.Message{detail, info}
	if f.field != "" {
		violation := &errdetails.BadRequest_FieldViolation{Field: f.field, Description: f.Error()}
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{violation}})
	}
	if f.isRetryable() {
		detail.RetryAfter = &durationpb.Duration{Seconds: 1}
		details = append(details, &errdetails.RetryInfo{RetryDelay: detail.RetryAfter})
	}
	plain := status.New(codeOf[f.reason], f.Error())
	if full, err := plain.WithDetails(details...); err == nil {
		return full
	}
	return plain
}

// withPushback repeats retry_after in the trailer that gRPC's own retry policy obeys.
func withPushback(ctx context.Context, err error) error {
	if f, ok := err.(*failure); ok && f.isRetryable() {
		_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "1000"))
	}
	return err
}
