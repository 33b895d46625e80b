"""The server as a whole: what it says of itself, keys and certificates, health, drain, and its end."""
