"""`enginewire serve`: an engine and the backend in front of it, started, shown and ended as one."""
