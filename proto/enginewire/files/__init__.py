"""Files and sockets on this machine: whether somebody else can replace them, and what they hold now.

Knows nothing about keys, certificates and gRPC.
"""
