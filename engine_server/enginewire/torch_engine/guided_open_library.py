"""Which grammar library a name means. Imports one only when it was asked for."""

from __future__ import annotations

from enginewire.torch_engine.guided_library import Library, Vocabulary


def open_library(name: str, vocabulary: Vocabulary) -> Library:
    """The library of that name; raises ImportError when it is not installed."""
    if name == "xgrammar":
        from enginewire.torch_engine.guided_xgrammar import XGrammar

        return XGrammar(vocabulary)
    from enginewire.torch_engine.guided_llguidance import LLGuidance

    return LLGuidance(vocabulary)
