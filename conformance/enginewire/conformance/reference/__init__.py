"""A small, correct engine server to prove the kit with, written to be broken.

`Reference` is one class built up over a few files, so that a mutant overrides any single method of it:
`settings` what it says about itself, `validation` what it refuses, `model` which tokens come,
`choices` when they end, `engine` slots and KV blocks, `service` and `lifecycle` the RPCs, `server` the rest.
"""
