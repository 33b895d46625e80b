"""The RPCs of the contract: check, call, stream; errors are mapped in `handlers`.

And what `SubscribeKvEvents` has, for routers that speak ZeroMQ. Knows no engine but by its interface.
"""
