"""Second-order mutants: what one mutant breaks everywhere, broken only where a condition holds.

`subjects` is what a server is busy with, `conditions` what may hold for it, `when` the server that is wrong
only then. `workload` and `probe` tell without any check whether that changes an answer; `draw` draws pairs.
"""
