"""How tokens come about in the reference: the model, the choices of a request, the step loop.

Knows no RPC: `service` has what each of them answers.
"""
