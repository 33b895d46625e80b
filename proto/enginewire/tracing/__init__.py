"""Traces: what a request brings of its trace, and the spans that a program of ours adds, sent over OTLP.

`attributes` and `exporting` need opentelemetry. They are imported only where traces are sent.
"""
