"""A fleet of engines in one process, whose time is counted and not waited for."""
