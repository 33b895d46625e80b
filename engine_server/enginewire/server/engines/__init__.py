"""What an engine is to the shell: its interface, what one may begin with, and the checks of what it gives.

`mocker` and `upstream` are engines; what is beside them knows no engine.
"""
