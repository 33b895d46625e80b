"""What every client asks, and what the demo model says to it."""

# Annotations are no texts here: LlamaIndex reads those of a function as they are.
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

MODEL = "builtin:demo"
KEY = "none"
QUESTION = "What is Enginewire?"
ANSWER = "Enginewire is the wire"
"""What the answer to it begins with."""

WEATHER_QUESTION = "What is the weather in Kyoto?"
"""The model calls `get_weather` by itself for it, and repeats what that says."""
WEATHER_ARGUMENTS = {"city": "Kyoto"}
WEATHER_ANSWER = "It rains in Kyoto."
# What the model must write is bounded: a weak one could go on in a string until it has no tokens left.
City = Literal["Kyoto", "Oslo"]
CITIES = get_args(City)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": [*CITIES]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
STRICT_TOOL = {"type": "function", "function": {**TOOL["function"], "strict": True}}

SENTENCES = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]
SIMILARITY = 0.7553
"""Of the first two, as the makers of the MiniLM publish it."""


class Place(BaseModel):
    """A place to go to."""

    model_config = ConfigDict(extra="forbid")
    city: City
    is_wet: bool


def get_weather(city: City) -> str:
    """Say what the weather is like in a city."""
    return f"It rains in {city}."


def similarity(vectors: list[list[float]]) -> float:
    """Of the first two, which have length 1."""
    return sum(a * b for a, b in zip(vectors[0], vectors[1], strict=True))
