"""Methods by name, each a frozen dataclass with pure plan, encode and decode."""

from thinwire.schemes.base import Plan, Scheme
from thinwire.schemes.deadzone import DeadZone
from thinwire.schemes.dithered import Dithered
from thinwire.schemes.eden import DRIVE, EDEN
from thinwire.schemes.evenly_spaced import QSGD, MinMax, TernGrad
from thinwire.schemes.group import Group, partition
from thinwire.schemes.leveled import LeveledScheme
from thinwire.schemes.linear import Linear
from thinwire.schemes.none import NoCompression
from thinwire.schemes.optimal import LloydMax, Optimal
from thinwire.schemes.orq import ORQ
from thinwire.schemes.registry import DEFAULT, METHODS, NAMES, from_options, from_spec
from thinwire.schemes.rotated import Rotated
from thinwire.schemes.two_level import BinGradB, BinGradPB, SignSGD

__all__ = [
    "DEFAULT",
    "DRIVE",
    "EDEN",
    "METHODS",
    "NAMES",
    "ORQ",
    "QSGD",
    "BinGradB",
    "BinGradPB",
    "DeadZone",
    "Dithered",
    "Group",
    "LeveledScheme",
    "Linear",
    "LloydMax",
    "MinMax",
    "NoCompression",
    "Optimal",
    "Plan",
    "Rotated",
    "Scheme",
    "SignSGD",
    "TernGrad",
    "from_options",
    "from_spec",
    "partition",
]
