"""Imported once by the server that workers are forked from: they inherit the compiled kernels."""

import thinwire
import thinwire.ddp
from thinwire.schemes import METHODS

thinwire.warmup(*(method() for method in METHODS.values()))
