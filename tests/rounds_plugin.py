"""Pytest plugin: ``--rounds N`` runs every test N times, as ``scripts/flaky.sh`` does."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="how often each test is run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rounds = metafunc.config.getoption("rounds")
    metafunc.fixturenames.append("_round")
    metafunc.parametrize("_round", range(1, rounds + 1))
