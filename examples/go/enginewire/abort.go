package enginewire

import (
	"fmt"

	pb "example.com/engine/gen/enginewire/v1"
)

// Abort answers with what abort says of each id: those of the request or, when it asks for all, those that are live.
func Abort(request *pb.AbortRequest, live []string, abort func(id string) pb.AbortOutcome) (*pb.AbortResponse, error) {
	const most = 16384 // The answer has to stay below 4 MiB.
	ids := request.RequestIds
	switch {
	case request.All == (len(ids) > 0):
		return nil, Invalid("request_ids", "exactly one of ids and all is needed")
	case len(ids) > most:
		return nil, Invalid("request_ids", fmt.Sprintf("too many for one answer, got %d, allowed %d", len(ids), most))
	case request.All:
		ids = live
	}
	response := &pb.AbortResponse{}
	for _, id := range ids {
		response.Results = append(response.Results, &pb.AbortResult{RequestId: id, Outcome: abort(id)})
	}
	return response, nil
}
