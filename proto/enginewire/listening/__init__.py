"""How servers of ours listen: sockets and ports, whom HTTP is for, and health.

Who may come in is up to `tls` and `access`; what a server answers besides health is its own.
"""
