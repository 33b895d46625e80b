"""TLS of everything here that listens or connects: certificates from files, who is let in, who is believed.

A Unix socket has none of it: the system guards that.
"""
