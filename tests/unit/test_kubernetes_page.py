"""The page about Kubernetes: its manifests are objects of the API, and its task has what is asked for."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from airflow_provider_snowpipe.operators.cluster_delivery import (
    ClusterSettings,
    KubernetesDelivery,
    Submission,
)
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import FileSource
from airflow_provider_snowpipe.spark.driver.credentials import read_credentials_variable
from airflow_provider_snowpipe.streaming.auth import ProgrammaticAccessToken

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-on-kubernetes.md"
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
MANIFESTS = [one for kind, text in _BLOCKS if kind == "yaml" for one in yaml.safe_load_all(text)]


def _named(kind, name):
    (found,) = (one for one in MANIFESTS if one["kind"] == kind and one["metadata"]["name"] == name)
    return dict(found)


@pytest.mark.skipif(find_spec("kubernetes") is None, reason="Kubernetes' client is not installed")
def test_a_manifest_is_an_object_of_the_api():
    from kubernetes.client import ApiClient

    api = ApiClient()
    for manifest in MANIFESTS:
        model = api.deserialize(SimpleNamespace(data=json.dumps(manifest)), f"V1{manifest['kind']}")
        assert api.sanitize_for_serialization(model) == manifest


def test_manifests_name_each_other_and_the_secret_holds_what_the_driver_reads(monkeypatch):
    for one in [one for one in MANIFESTS if one["kind"] == "RoleBinding"]:
        assert _named("Role", one["roleRef"]["name"])["metadata"]["namespace"] == one["metadata"]["namespace"]
    monkeypatch.setenv("X", _named("Secret", "snowflake")["stringData"]["credentials"])
    assert read_credentials_variable("X")[0] == ProgrammaticAccessToken("…")


def test_the_task_has_what_is_checked_before_submission_and_names_what_the_manifests_make(set_connection):
    (exported,) = (re.findall(r"='(.*)'", text, re.DOTALL) for _, text in _BLOCKS if "AIRFLOW_CONN" in text)
    connection = json.loads(exported[0])
    conn_id = set_connection("spark_kubernetes", **connection)
    (code,) = (text for kind, text in _BLOCKS if kind == "python")
    names = {"SnowpipeStreamOperator": SnowpipeStreamOperator, "FileSource": FileSource}
    operator = eval(code, names)  # noqa: S307  the page's own

    namespace = connection["extra"]["namespace"]
    secret = operator.driver_secret
    settings = ClusterSettings(conn_id, "/w", "x", 1.0, namespace=namespace, driver_secret=secret)
    KubernetesDelivery(settings, Submission("", "", "")).check(operator.conf or {}, "")
    name, _, key = str(secret).partition(":")
    assert key in _named("Secret", name)["stringData"]
    account = (operator.conf or {})["spark.kubernetes.authenticate.driver.serviceAccountName"]
    assert _named("ServiceAccount", account)["metadata"]["namespace"] == namespace
    assert operator.spark_conn_id == conn_id
