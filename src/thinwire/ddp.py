"""thinwire in DistributedDataParallel: `thinwire.ddp.register(model, thinwire.ORQ(levels=9))`."""

from thinwire.integrations.ddp import Handle, Stats, register

__all__ = ["Handle", "Stats", "register"]
