"""Say once why the first call takes so long: Numba compiles the kernels for this processor and keeps them on disk."""

import logging
from typing import Any

from numba.core import event

__all__ = ["announce_compilation"]

_log = logging.getLogger("thinwire")


class _Announcement(event.Listener):
    made = False

    def on_start(self, event: Any) -> None:
        module = event.data["dispatcher"].py_func.__module__ or ""  # None for code without a module
        if not self.made and module.startswith("thinwire."):
            self.made = True
            _log.warning(
                "compiling kernels for this processor: once after an installation, 10 to 30 seconds a method "
                "(`thinwire warmup` does it ahead for all)"
            )

    def on_end(self, event: Any) -> None:
        pass


def announce_compilation() -> None:
    """Log one line when this process compiles its first kernel; not when it finds kernels on disk."""
    event.register("numba:compile", _Announcement())
