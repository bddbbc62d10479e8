"""thinwire in DistributedDataParallel: `thinwire.ddp.register(model, thinwire.ORQ(levels=9))`."""

from thinwire.integrations.ddp import Handle, register
from thinwire.monitor import JsonLines, Stats, TensorBoard
from thinwire.policies import Rule, Schedule, TravelPlan

__all__ = ["Handle", "JsonLines", "Rule", "Schedule", "Stats", "TensorBoard", "TravelPlan", "register"]
