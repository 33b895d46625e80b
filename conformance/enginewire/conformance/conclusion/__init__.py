"""What becomes of a report: known failures, changes since an earlier run, files, the end of the program.

Knows nothing about how checks run.
"""
