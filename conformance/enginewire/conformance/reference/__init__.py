"""A small, correct engine server to prove the kit with, written to be broken.

`Reference` is one class built up over a few files, so that a mutant overrides any single method of it:
`settings` what it says about itself, `validation` what it refuses, `generation` which tokens come and when
they end, `service` and `lifecycle` the RPCs, `capabilities` what is beyond core, `server` the wire.
"""
