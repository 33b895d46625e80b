"""Who may call what: API keys and their roles, who a caller is, and the guard before every RPC of ours.

Who gets as far as a call over TCP is up to `tls`.
"""
