"""vLLM as an engine of ours: its `EngineCore` behind `StepEngine`, one vLLM step one `StepOutputs`.

vLLM builds and checks the requests and computes the tokens; the texts that it could make are the backend's.
Every import of vLLM is in this room. Importing the package imports none of it.
"""
