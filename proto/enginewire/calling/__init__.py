"""How programs of ours reach a server: the channel, which servers they believe, and what they bring.

How our servers listen is in `listening`.
"""
