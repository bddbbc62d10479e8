import pytest

from workers import Workers, workers


@pytest.fixture(params=[1, 2, 4], ids="{} ranks".format)
def team(request: pytest.FixtureRequest) -> Workers:
    return workers(request.param)


@pytest.fixture
def four() -> Workers:
    return workers(4)


@pytest.fixture
def two() -> Workers:
    return workers(2)
