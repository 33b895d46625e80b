"""What the reference offers beyond core, a file for each capability. `Reference` is the sum of them.

They know the methods of `service` that they add to, and nothing about the wire.
"""
