"""Packages that only the lab needs, imported when they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from thinwire.errors import LabError

__all__ = ["require"]


def require(module: str) -> ModuleType:
    """Import a module of the optional extra `thinwire[lab]`.

    Raises:
        LabError: its package is not installed; the message says how to install it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise LabError(f"this needs the package {package}: pip install 'thinwire[lab]'") from error
