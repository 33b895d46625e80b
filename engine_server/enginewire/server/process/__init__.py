"""What any server of ours does with its process: sockets, signals, log lines.

Knows nothing about engines or requests.
"""
