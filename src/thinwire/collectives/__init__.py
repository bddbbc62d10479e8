"""Frames between ranks, in order, on a process group and a thread of our own."""

from thinwire.collectives.agree import agree
from thinwire.collectives.all_reduce import all_gather, all_reduce, reduce_scatter, shares
from thinwire.collectives.by_node import node_ranks
from thinwire.collectives.channel import Channel, Traffic
from thinwire.collectives.exchange import (
    ALGORITHMS,
    average,
    check_algorithm,
    mean_of_frames,
    plain_mean,
)
from thinwire.collectives.feedback import Feedback, Observer
from thinwire.collectives.stages import Stages

__all__ = [
    "ALGORITHMS",
    "Channel",
    "Feedback",
    "Observer",
    "Stages",
    "Traffic",
    "agree",
    "all_gather",
    "all_reduce",
    "average",
    "check_algorithm",
    "mean_of_frames",
    "node_ranks",
    "plain_mean",
    "reduce_scatter",
    "shares",
]
