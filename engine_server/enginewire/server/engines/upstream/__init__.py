"""An engine in another process that serves the profile `bare`; this server is in front of it."""
