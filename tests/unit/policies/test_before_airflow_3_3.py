"""Where Airflow has no retry policies, ours reports it."""

import importlib

import pytest

import tests.airflow_connections  # noqa: F401  gives Airflow a home before it is imported
from tests.airflow_version import AIRFLOW

pytestmark = pytest.mark.skipif(AIRFLOW >= (3, 3), reason="Airflow has retry policies since 3.3")


def test_the_policy_names_the_airflow_it_needs():
    from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

    with pytest.raises(AirflowOptionalProviderFeatureException, match=r"3\.3"):
        importlib.import_module("airflow_provider_snowpipe.policies.retry")
