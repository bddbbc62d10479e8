"""agree: the same words on every rank about who differs and in what."""

from __future__ import annotations

import pytest

from thinwire.collectives import Channel, agree
from thinwire.errors import DisagreementError, SchemeError
from workers import Workers


def agree_job(rank: int, n: int, descriptions: list[dict[str, str]], errors: dict[int, Exception]) -> tuple[str, str]:
    channel = Channel()
    try:
        agree(channel, descriptions[rank], errors.get(rank))
    except (DisagreementError, SchemeError) as error:
        return type(error).__name__, str(error)
    finally:
        channel.close()
    return "agreed", ""


def test_equal_descriptions_agree(team: Workers) -> None:
    n = len(team.processes)
    description = {"scheme": "ORQ(levels=9)", "long": "ä" * 100_000}
    assert team.run(agree_job, [description] * n, {}) == [("agreed", "")] * n


def test_what_differs_and_where_is_said_on_all_ranks(four: Workers) -> None:
    common = {"scheme": "ORQ(levels=9)", "seed": "0", "parameter 0": "weight (3, 4)"}
    odd = {"scheme": "ORQ(levels=5)", "seed": "0"}
    expected = (
        "ranks disagree: scheme is ORQ(levels=9) on ranks 0, 1, 3 and ORQ(levels=5) on rank 2; "
        "parameter 0 is weight (3, 4) on ranks 0, 1, 3 and absent on rank 2"
    )
    result = four.run(agree_job, [common, common, odd, common], {})
    assert result == [("DisagreementError", expected)] * 4


def test_many_differences_are_counted(four: Workers) -> None:
    descriptions = [{f"parameter {i}": f"{i} {rank // 2}" for i in range(50)} for rank in range(4)]
    kind, said = four.run(agree_job, descriptions, {})[3]
    assert kind == "DisagreementError"
    assert said.endswith("; and 46 more differences")


def test_an_error_of_some_ranks_ends_all(four: Workers) -> None:
    errors: dict[int, Exception] = {1: SchemeError("orq: levels must be 2^k + 1"), 3: ValueError("other")}
    expected = (
        "rank 1 cannot take part: SchemeError: orq: levels must be 2^k + 1; rank 3 cannot take part: ValueError: other"
    )
    assert four.run(agree_job, [{"a": "b"}] * 4, errors) == [("DisagreementError", expected)] * 4


def test_an_error_that_all_ranks_have_is_raised_itself(team: Workers) -> None:
    n = len(team.processes)
    errors = {rank: SchemeError("no such method") for rank in range(n)}
    assert team.run(agree_job, [{"a": "b"}] * n, errors) == [("SchemeError", "no such method")] * n


def test_the_channel_serves_on_after_agreement(team: Workers) -> None:
    team.run(serving_job)


def serving_job(rank: int, n: int) -> None:
    channel = Channel()
    for _ in range(2):
        agree(channel, {"same": "words"})
    with pytest.raises(KeyError):
        agree(channel, {}, KeyError("same"))
    assert channel.traffic.calls == 0
    channel.close()
