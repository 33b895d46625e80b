package enginewire

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/engine/gen/enginewire/v1"
)

// ShutdownTimeout is the time that a drain has when nobody says another one.
const ShutdownTimeout = 30 * time.Second

// Drain begins a drain and sends its progress until it is over.
func Drain(request *pb.DrainRequest, stream pb.EngineService_DrainServer, engine Engine) error {
	limit, err := duration("deadline", request.Deadline, ShutdownTimeout)
	if err != nil {
		return err
	}
	grace, err := duration("admission_grace", request.AdmissionGrace, 0)
	if err != nil {
		return err
	}
	engine.BeginDrain(limit, grace)
	return Watch(stream, 5*time.Millisecond, func() (proto.Message, bool) {
		load, state := engine.Progress()
		progress := &pb.DrainResponse{State: state, Running: load.Running, Waiting: load.Waiting}
		return progress, isOver(state)
	})
}

func isOver(state pb.DrainState) bool {
	return state == pb.DrainState_DRAIN_STATE_DRAINED || state == pb.DrainState_DRAIN_STATE_TIMED_OUT
}

func duration(field string, duration *durationpb.Duration, absent time.Duration) (time.Duration, error) {
	if duration == nil {
		return absent, nil
	}
	if duration.Seconds < 0 || duration.Nanos < 0 {
		return 0, Invalid(field, "must not be negative")
	}
	return duration.AsDuration(), nil
}

// Watch sends what current returns at once and after every change, until it is final or the caller has gone.
func Watch(stream grpc.ServerStream, interval time.Duration, current func() (proto.Message, bool)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for last := proto.Message(nil); ; {
		message, isFinal := current()
		if last == nil || !proto.Equal(message, last) {
			if err := stream.SendMsg(message); err != nil {
				return err
			}
		}
		if isFinal {
			return nil
		}
		last = message
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-ticker.C:
		}
	}
}
