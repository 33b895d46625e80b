"""What any server of ours does with its process: signals.

Knows nothing about engines or requests.
"""
