"""Options of a program, each declared once: flag, environment, config file, default, help and docs.

Declare with `option` in a frozen dataclass, read with `load`. Standard library only, because `--help`
has to be quick; knows nothing about servers, clients or any particular option.
"""

from enginewire.options.declaration import computed, option
from enginewire.options.json_fields import json_fields
from enginewire.options.kinds import OptionError
from enginewire.options.loading import Loaded, load

__all__ = ["Loaded", "OptionError", "computed", "json_fields", "load", "option"]
