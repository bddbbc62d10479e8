"""Rules and schedules: what wins, what is refused, what the plan says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import thinwire
from thinwire.ddp import Rule, Schedule
from thinwire.errors import SchemeError
from thinwire.policies import Policy

ORQ = thinwire.ORQ(levels=9)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.conv = nn.Conv2d(16, 32, 3)
        self.norm = nn.BatchNorm2d(32)
        self.head = nn.Linear(16, 100)
        self.head.weight = self.embed.weight


def labels(*rules: Rule, scheme: object = ORQ, step: int = 0) -> dict[str, str]:
    policy = Policy(Net(), scheme, rules, 1024)  # type: ignore[arg-type]
    return {row.name: row.scheme for row in policy.plan(step, False).rows}


def test_without_rules_the_count_of_values_decides() -> None:
    assert labels() == {
        "embed.weight": "orq-9",
        "conv.weight": "orq-9",
        "conv.bias": "none",
        "norm.weight": "none",
        "norm.bias": "none",
        "head.bias": "none",
    }


def test_each_condition_alone() -> None:
    sign = thinwire.SignSGD()
    for rule, named in (
        (Rule(sign, name="*.bias"), {"conv.bias", "norm.bias", "head.bias"}),
        (Rule(sign, module=nn.Conv2d), {"conv.weight", "conv.bias"}),
        (Rule(sign, module=(nn.Conv2d, nn.BatchNorm2d)), {"conv.weight", "conv.bias", "norm.weight", "norm.bias"}),
        (Rule(sign, module=nn.Linear), {"embed.weight", "head.bias"}),  # a tied parameter has several holders
        (Rule(sign, module=nn.Embedding), {"embed.weight"}),
        (Rule(sign, dims=2), {"embed.weight"}),
        (Rule(sign, min_values=4608), {"conv.weight"}),
        (Rule(sign, max_values=32), {"conv.bias", "norm.weight", "norm.bias"}),
        (Rule(sign, name="conv.*", dims=1), {"conv.bias"}),
    ):
        assert {name for name, label in labels(rule).items() if label == "signsgd"} == named, rule.why


def test_the_first_rule_that_fits_wins() -> None:
    rules = (
        Rule("keep", module=nn.Embedding),
        Rule(thinwire.QSGD(levels=5), dims=2, max_values=9),
        Rule(ORQ, name="*"),
    )
    with pytest.raises(SchemeError, match=r"rule 1 \(dims=2, max_values=9\) decides nothing"):
        labels(*rules)
    named = labels(rules[0], rules[2])
    assert named["embed.weight"] == "none"
    assert named["norm.bias"] == "orq-9"


def test_a_schedule_changes_schemes_by_step() -> None:
    schedule = Schedule({0: "keep", 10: thinwire.ORQ(levels=17), 100: thinwire.ORQ(levels=3)})
    seen = [labels(scheme=schedule, step=step)["conv.weight"] for step in (0, 9, 10, 99, 100, 10**9)]
    assert seen == ["none", "none", "orq-17", "orq-17", "orq-3", "orq-3"]
    policy = Policy(Net(), schedule, (), 1024)
    assert [policy.segments(step) is policy.segments(step + 1) for step in (3, 9)] == [True, False]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Rule(ORQ), "a rule needs a condition"),
        (lambda: Rule("orq-9", name="*"), "a scheme must be a thinwire scheme"),
        (lambda: Schedule({}), "the first at 0"),
        (lambda: Schedule({1: ORQ}), "the first at 0"),
        (lambda: Schedule({0: ORQ, -3: ORQ}), "whole steps"),
        (lambda: Schedule({0: ORQ, 5: "fp32"}), "got 'fp32'"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, said: str) -> None:
    with pytest.raises(SchemeError, match=said):
        make()  # type: ignore[operator]


def test_a_printed_plan_says_how_at_what_bits_and_why() -> None:
    model = Net()
    model.conv.bias.requires_grad = False
    model.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    plan = Policy(model, ORQ, [Rule(thinwire.SignSGD(), name="norm.*")], 1024).plan(5, "auto")
    rows = {line.split()[0]: line for line in str(plan).splitlines()[2:]}
    assert str(plan).splitlines()[0] == "step 5"
    assert rows["conv.weight"].split()[1:6] == ["32x16x3x3", "float32", "orq-9", "3.389", "no"]
    assert "fewer than 1024 values" in rows["head.bias"]
    assert "frozen" in rows["conv.bias"]
    assert rows["norm.bias"].split()[3:6] == ["signsgd", "2.000", "yes"]
    assert "rule 0: name=norm.*" in rows["norm.bias"]
    assert "plain" in rows["phase"]
    assert "torch.complex64 cannot be encoded" in rows["phase"]
