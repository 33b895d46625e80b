"""What any server of ours does with its process: signals, and its end.

Knows nothing about engines or requests.
"""
