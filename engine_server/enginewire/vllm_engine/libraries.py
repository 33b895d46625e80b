"""Each grammar by the library that was chosen for it: vLLM takes that of the first one for all.

Changes vLLM's own class, in the process that schedules. Imports vLLM when it is called.
"""

from __future__ import annotations

import copy
from typing import Any


def follow_each_by_its_own() -> None:
    """Have vLLM compile each guide with the library that its request names."""
    from vllm.v1.structured_output import StructuredOutputManager

    begin = StructuredOutputManager.grammar_init
    managers: dict[str, Any] = {}  # a process has one, and a copy of it for each library

    def grammar_init(self: Any, request: Any) -> None:
        if request.structured_output_request is None:
            return
        library = request.sampling_params.structured_outputs._backend
        if library not in managers:
            managers[library] = copy.copy(self)
            managers[library].backend = None
        begin(managers[library], request)
        # It makes the masks, which have one form whoever fills them.
        self.backend = managers[library].backend

    StructuredOutputManager.grammar_init = grammar_init
