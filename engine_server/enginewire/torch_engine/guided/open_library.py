"""Which grammar library a name means. Imports one only when it was asked for."""

from __future__ import annotations

from enginewire.torch_engine.guided.library import Library, Vocabulary


def open_library(name: str, vocabulary: Vocabulary) -> Library:
    """The library of that name; raises ImportError when it is not installed."""
    if name == "xgrammar":
        from enginewire.torch_engine.guided.xgrammar import XGrammar

        return XGrammar(vocabulary)
    from enginewire.torch_engine.guided.llguidance import LLGuidance

    return LLGuidance(vocabulary)
