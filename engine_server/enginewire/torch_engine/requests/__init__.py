"""What the rooms of the engine say to each other: requests, their choices, what they ask for.

Holds no torch.
"""
