"""Quantized averaging as a communication hook of DistributedDataParallel."""

from thinwire.integrations.ddp.handle import Handle
from thinwire.integrations.ddp.register import register

__all__ = ["Handle", "register"]
