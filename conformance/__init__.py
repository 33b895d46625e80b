"""The conformance kit: judges any server of `enginewire.v1`. Depends on grpcio and protobuf only."""
