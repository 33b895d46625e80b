// Package enginewire is what every engine of the contract needs beside its model and its scheduler: failures, the rules
// of the fields, the end of an answer, the server process.
package enginewire

import (
	"fmt"
	"time"

	pb "example.com/engine/gen/enginewire/v1"
)

const (
	revision       = 2 // Of the contract that the stubs were made from.
	oldestRevision = 1
	schemaDigest   = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401"
)

// LifetimeID names this life of the process.
var LifetimeID = fmt.Sprintf("%016x", time.Now().UnixNano())

func info(name, version string, config *pb.EngineConfig) *pb.GetEngineInfoResponse {
	return &pb.GetEngineInfoResponse{
		Config:                config,
		EngineName:            name,
		EngineVersion:         version,
		InstanceId:            LifetimeID,
		EngineLifetimeId:      LifetimeID,
		ContractRevision:      revision,
		MinimumClientRevision: oldestRevision,
		MaximumClientRevision: revision,
		SchemaDigest:          schemaDigest,
	}
}
