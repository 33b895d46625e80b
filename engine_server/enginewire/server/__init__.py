"""The sidecar: runs an engine behind `enginewire.v1`. Imports no torch; engines bring their own."""
