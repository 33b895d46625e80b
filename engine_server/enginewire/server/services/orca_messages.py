"""The messages of ORCA, as far as they are used here, and its service.

See xds/data/orca/v3/orca_load_report.proto and xds/service/orca/v3/orca.proto. The package that has them on
PyPI, xds-protos, also brings old files of `opentelemetry.proto`, which break the exporter of traces.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "xds.service.orca.v3"
_Field = descriptor_pb2.FieldDescriptorProto

_FILE: Final = descriptor_pb2.FileDescriptorProto(
    name="enginewire/orca.proto",
    package=PACKAGE,
    syntax="proto3",
    message_type=[
        descriptor_pb2.DescriptorProto(name=name, field=fields)
        for name, fields in {
            "OrcaLoadReportRequest": [
                _Field(name="report_interval", number=1, type_name="Interval", type=_Field.TYPE_MESSAGE),
            ],
            # google.protobuf.Duration, as it is encoded.
            "Interval": [
                _Field(name="seconds", number=1, type=_Field.TYPE_INT64),
                _Field(name="nanos", number=2, type=_Field.TYPE_INT32),
            ],
            "OrcaLoadReport": [
                _Field(
                    name="named_metrics",
                    number=8,
                    type_name="NamedMetric",
                    type=_Field.TYPE_MESSAGE,
                    label=_Field.LABEL_REPEATED,
                ),
                _Field(name="application_utilization", number=9, type=_Field.TYPE_DOUBLE),
            ],
            # An entry of map<string, double>, as it is encoded.
            "NamedMetric": [
                _Field(name="key", number=1, type=_Field.TYPE_STRING),
                _Field(name="value", number=2, type=_Field.TYPE_DOUBLE),
            ],
        }.items()
    ],
    service=[
        descriptor_pb2.ServiceDescriptorProto(
            name="OpenRcaService",
            method=[
                descriptor_pb2.MethodDescriptorProto(
                    name="StreamCoreMetrics",
                    input_type="OrcaLoadReportRequest",
                    output_type="OrcaLoadReport",
                    server_streaming=True,
                )
            ],
        )
    ],
)
_FOUND: Final = descriptor_pool.DescriptorPool()
_FOUND.Add(_FILE)

SERVICE: Final = _FOUND.FindServiceByName(f"{PACKAGE}.OpenRcaService")
OrcaLoadReport: Final[Any] = message_factory.GetMessageClass(
    _FOUND.FindMessageTypeByName(f"{PACKAGE}.OrcaLoadReport")
)
OrcaLoadReportRequest: Final[Any] = message_factory.GetMessageClass(
    _FOUND.FindMessageTypeByName(f"{PACKAGE}.OrcaLoadReportRequest")
)
