"""A protoc plugin that runs the protoc inside grpcio-tools, so that buf needs no downloads.

grpcio-tools links its gRPC generator into its own protoc, which buf cannot call; this turns
buf's CodeGeneratorRequest into a descriptor set and hands that to it. Knows nothing of our files.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler import plugin_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc


def generate(request: plugin_pb2.CodeGeneratorRequest) -> plugin_pb2.CodeGeneratorResponse:
    """Python messages and gRPC stubs for every file buf asks for."""
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder, "in.binpb")
        descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
        out = Path(folder, "out")
        out.mkdir()
        code = protoc.main(
            [
                "protoc",
                f"--descriptor_set_in={descriptors}",
                f"--python_out={out}",
                f"--grpc_python_out={out}",
                *request.file_to_generate,
            ]
        )
        if code:
            response.error = f"protoc failed with exit code {code}"
            return response
        for path in sorted(out.rglob("*.py")):
            response.file.add(name=path.relative_to(out).as_posix(), content=path.read_text())
    return response


if __name__ == "__main__":
    incoming = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    sys.stdout.buffer.write(generate(incoming).SerializeToString())
