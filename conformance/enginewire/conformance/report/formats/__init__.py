"""Formats of a report, a file for each: for other programs, and the page for people. They decide nothing."""
