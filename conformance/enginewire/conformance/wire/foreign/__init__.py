"""Other contracts than ours, as far as the kit speaks them: health, google.rpc, OpenTelemetry.

Their messages are built at run time: the kit needs no package of theirs, and gets in the way of none.
"""
