package main

import (
	"context"

	"github.com/golang/protobuf/proto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/engine/gen/enginewire/v1"
)

// Failures and how they travel: a gRPC status whose details hold an ErrorDetail and google.rpc's messages.

var codeOf = map[string]codes.Code{
	"INVALID_REQUEST":   codes.InvalidArgument,
	"CONTEXT_EXCEEDED":  codes.InvalidArgument,
	"UNSUPPORTED":       codes.Unimplemented,
	"MODEL_NOT_FOUND":   codes.NotFound,
	"DUPLICATE_ID":      codes.AlreadyExists,
	"QUEUE_FULL":        codes.ResourceExhausted,
	"ROLE_MISMATCH":     codes.FailedPrecondition,
	"REVISION_MISMATCH": codes.FailedPrecondition,
	"DRAINING":          codes.Unavailable,
	"ENGINE_DEAD":       codes.Unavailable,
	"CANCELLED":         codes.Canceled,
}

type failure struct {
	reason, field, text string
	facts               map[string]string
}

func failed(reason, field, text string) *failure {
	return &failure{reason: reason, field: field, text: text}
}

func invalid(field, text string) *failure { return failed("INVALID_REQUEST", field, text) }

func (f *failure) Error() string {
	if f.field == "" {
		return f.text
	}
	return f.field + ": " + f.text
}

func (f *failure) isRetryable() bool {
	return codeOf[f.reason] == codes.Unavailable || f.reason == "QUEUE_FULL"
}

// GRPCStatus is what grpc-go sends for this error.
func (f *failure) GRPCStatus() *status.Status {
	reason := pb.ErrorReason(pb.ErrorReason_value["ERROR_REASON_"+f.reason])
	detail := &pb.ErrorDetail{Reason: reason, Field: f.field, Retryable: f.isRetryable(), Metadata: f.facts}
	details := []proto.Message{detail, &errdetails.ErrorInfo{Reason: f.reason, Domain: "enginewire", Metadata: f.facts}}
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
