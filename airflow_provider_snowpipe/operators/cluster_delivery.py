"""What a driver on a cluster needs, and how it gets plan, code and credentials: on YARN, and on Kubernetes.

Submitting, following and stopping are the same on both, in ``cluster_job``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_snowpipe.hooks.cluster import (
    APPLICATION_ID,
    POD_ID,
    SECRET_KEY,
    SECRET_LABEL,
    KubernetesPods,
)
from airflow_provider_snowpipe.hooks.storage import storage_path
from airflow_provider_snowpipe.operators.submission import SubmitHook
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.triggers.application import Cluster, cluster_of, spark_master

if TYPE_CHECKING:
    from requests.auth import AuthBase

    from airflow_provider_snowpipe.triggers.application import Application

SECRET_VARIABLE = "SNOWPIPE_SECRET"  # noqa: S105  a variable's name
"""Of the driver's environment."""
NEW_SECRET = "create"  # noqa: S105  a value of the operator's
"""As ``driver_secret``: one is made for each submission, and removed afterwards."""
PLAN_NAME = "snowpipe-plan.json"
JOB_NAME = "snowpipe-job.py"
SUBMISSION_TAG = re.compile(r"snowpipe-[0-9a-f]{16}-[0-9a-f]{8}")
_PREFIX = "snowpipe-"
_PACKAGE = "airflow_provider_snowpipe"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a driver on a cluster needs beside its submission, checked before anything is started.

    :param identity: what distinguishes this task instance from others that have the same folder
    """

    conn_id: str
    work_path: str
    identity: str
    poll_seconds: float
    auth: AuthBase | None = None
    namespace: str = ""
    driver_secret: str | None = None
    pipe: Mapping[str, Any] = field(default_factory=dict)

    def check(self, conf: Mapping[str, Any] | None, properties_file: str | None = None) -> None:
        """Refuse what would fail on the cluster, or leave a driver that nobody can follow."""
        self.cluster()
        if not self.work_path:
            raise ConfigurationError(
                "the deploy mode is 'cluster' and there is no work_path: give one that worker and driver "
                "read and write, for the report, such as 's3://bucket/folder', 'hdfs://name/folder' or a "
                "shared directory. Nothing was submitted"
            )
        settings = {name: str(value) for name, value in (conf or {}).items()}
        properties = Path(properties_file) if properties_file else None
        more = properties.read_text("utf-8") if properties is not None and properties.is_file() else ""
        if self.driver_credentials:
            from airflow_provider_snowpipe.spark.driver.credentials import check_driver_credentials

            check_driver_credentials("driver_secret", self.driver_credentials)
        delivery_of(self, Submission("", "", "")).check(settings, more)

    @property
    def driver_credentials(self) -> str:
        """What the driver has or gets itself for its credentials, empty where they are brought to it."""
        from airflow_provider_snowpipe.spark.driver.credentials import is_of_driver

        return self.driver_secret if self.driver_secret and is_of_driver(self.driver_secret) else ""

    def cluster(self) -> Cluster:
        """Where the application is followed."""
        return cluster_of(self.conn_id, self.auth, self.namespace)

    @property
    def task_tag(self) -> str:
        """What every application of the task instance has among its tags."""
        return f"{_PREFIX}{hashlib.sha256(f'{self.work_path} {self.identity}'.encode()).hexdigest()[:16]}"

    def folder(self, tag: str) -> str:
        """The address of one submission's folder."""
        return f"{self.work_path.rstrip('/')}/{tag}"


@dataclass(frozen=True, slots=True)
class Submission:
    """One submission: what finds its application on the cluster, and what it left on the submitting machine.

    :param tag: the application's tag, and the name of its folder below ``work_path``
    :param application_id: the cluster's id, None until it is known
    """

    tag: str
    host: str
    directory: str
    application_id: str | None = None

    @classmethod
    def of(cls, kept: Any) -> Self | None:
        """Read what a try kept, None if it is something else."""
        if not isinstance(kept, Mapping):
            return None
        values: dict[str, Any] = {one.name: kept.get(one.name) for one in fields(cls)}
        known = values["application_id"]
        if not all(isinstance(values[name], str) for name in ("tag", "host", "directory")):
            return None
        if not SUBMISSION_TAG.fullmatch(values["tag"]):
            return None
        if known is not None and not (APPLICATION_ID.fullmatch(str(known)) or POD_ID.fullmatch(str(known))):
            return None
        return cls(**values)


# -- YARN ------------------------------------------------------------------------------------------------

# Settings, an environment and files reach every executor in the application's archive of its configuration,
# and YARN shows a container's environment beside its logs (launch_container.sh). The application's file comes
# to the driver's container only. It is brought there again for another attempt on the same machine.
_JOB = """\
import contextlib
import os
import sys

with contextlib.suppress(OSError):
    os.unlink(os.path.realpath(__file__))
os.environ[{variable!r}] = {secret!r}
from airflow_provider_snowpipe.spark.driver.job import main

sys.exit(main(sys.argv[1:]))
"""
_YARN_WAIT = "spark.yarn.submit.waitAppCompletion"
_TAGS = "spark.yarn.tags"


class YarnDelivery:
    """YARN brings files of the submitting machine to the containers."""

    def __init__(self, settings: ClusterSettings, submission: Submission) -> None:
        self._settings = settings
        self._tags = (settings.task_tag, submission.tag)
        self._directory = Path(submission.directory)

    def check(self, conf: Mapping[str, str], properties: str) -> None:
        """Refuse what would fail on the cluster."""
        _check_wait(conf, _YARN_WAIT)
        secret = self._settings.driver_secret
        if secret and not self._settings.driver_credentials:
            raise ConfigurationError(
                f"driver_secret is {secret!r}, and YARN has no such secrets: drop it, by which the driver "
                "gets the connection's credentials in its application's file, or give 'file:/path' or "
                "'python:module:function' of the driver's machine"
            )

    @property
    def job(self) -> str:
        """The application as ``spark-submit`` gets it."""
        return str(self._directory / JOB_NAME)

    def put_job(self, application: str) -> None:
        """Put the job there, unless the one with the credentials is."""
        if not Path(self.job).exists():
            shutil.copyfile(application, self.job)

    def put(self, file: Path) -> str:
        """The file's path: ``spark-submit`` uploads it."""
        return str(file)

    def write_plan(self, text: str) -> str:
        """Write the plan, which YARN brings into the driver's directory; the application's argument."""
        (self._directory / PLAN_NAME).write_text(text, encoding="utf-8")
        return PLAN_NAME

    def write_secrets(self, text: str) -> None:
        """Write the credentials into the application's file, which YARN brings to nobody but the driver."""
        from airflow_provider_snowpipe.spark.driver.credentials import write_private

        write_private(_JOB.format(variable=SECRET_VARIABLE, secret=text).encode(), self.job)

    def complete(self, hook: SubmitHook) -> None:
        """Add the settings of the submission to those of the author."""
        hook.leave_following()
        tags = ",".join([*filter(None, [hook.conf.get(_TAGS)]), *self._tags])
        hook.conf = {**hook.conf, _YARN_WAIT: "false", _TAGS: tags}
        hook.add_file(str(self._directory / PLAN_NAME))

    def submitted(self, line: str) -> str | None:
        """The application's id, where a line of ``spark-submit`` shows that YARN has it."""
        # "Submitting" is logged before YARN has it, and by then it may not: the tag decides.
        found = APPLICATION_ID.search(line) if "ubmitted application" in line else None
        return found[0] if found else None

    def remove(self, application: Application | None) -> None:
        """Nothing: YARN removes what it brought."""


# -- Kubernetes ------------------------------------------------------------------------------------------

# Options that name files of an object store have spark-submit fetch them, which takes Hadoop's client of
# that store and credentials on the worker (observed with Spark 4.2); the application's file is not looked
# for. Before the context starts, two settings have Spark bring the archive to the executors.
_WHOLE_JOB = """\
import base64
import os
import runpy
import sys
import tempfile

from pyspark import SparkConf, SparkContext

folder = tempfile.mkdtemp(prefix="snowpipe-")
archive, plan = os.path.join(folder, {archive!r}), os.path.join(folder, sys.argv[1])
with open(archive, "wb") as file:
    file.write(base64.b64decode({code!r}))
with open(plan, "w", encoding="utf-8") as file:
    file.write({plan!r})
sys.path.append(archive)
SparkContext._ensure_initialized()
for name in ("spark.files", "spark.submit.pyFiles"):
    given = SparkConf().get(name, "")
    SparkContext.setSystemProperty(name, ",".join(filter(None, [given, archive])))
sys.argv[1:] = [plan]
runpy.run_module({module!r}, run_name="__main__")
"""
_KUBERNETES_WAIT = "spark.kubernetes.submission.waitAppCompletion"
_POD_NAME = "spark.kubernetes.driver.pod.name"
_TEMPLATE = "spark.kubernetes.driver.podTemplateFile"
_NEEDED = (
    ("image", ("spark.kubernetes.container.image", "spark.kubernetes.driver.container.image")),
    (
        "service account of the driver",
        (
            "spark.kubernetes.authenticate.driver.serviceAccountName",
            "spark.kubernetes.authenticate.serviceAccountName",
        ),
    ),
)


class KubernetesDelivery:
    """The driver's pod reads one file with job, code and plan at ``work_path``, and a secret."""

    def __init__(self, settings: ClusterSettings, submission: Submission) -> None:
        self._settings = settings
        self._tags = (settings.task_tag, submission.tag)
        self._name = submission.tag
        self._pod_name = f"{submission.tag}-driver"
        self._folder = settings.folder(submission.tag)
        root = storage_path(self._folder, None)
        self._shared: str | None = os.path.abspath(root.path) if is_of_this_machine(root) else None
        self._secret: str | None = None
        self._plan = ""
        self._archive = Path()

    def check(self, conf: Mapping[str, str], properties: str) -> None:
        """Refuse what would fail on the cluster."""
        _check_wait(conf, _KUBERNETES_WAIT)
        if _POD_NAME in conf:
            raise ConfigurationError(
                f"conf {_POD_NAME!r} is {conf[_POD_NAME]!r}: drop it, a retry finds the pod by its own name"
            )
        if not self._settings.namespace:
            raise ConfigurationError(
                "nothing sets in which namespace of Kubernetes the driver runs: add 'namespace' to the extra "
                f"of the Spark connection {self._settings.conn_id!r}, or give conf "
                "'spark.kubernetes.namespace'. Nothing was submitted"
            )
        for what, names in _NEEDED:
            if not any(name in conf or name in properties for name in (*names, _TEMPLATE)):
                raise ConfigurationError(
                    f"no {what} for Kubernetes: give conf {names[0]!r}. Nothing was submitted"
                )
        secret = self._settings.driver_secret
        is_known = secret == NEW_SECRET or self._settings.driver_credentials
        if secret and not is_known and not all(secret.partition(":")):
            raise ConfigurationError(
                f"driver_secret is {secret!r}: give 'name:key' of a secret in the namespace, {NEW_SECRET!r}, "
                "or 'file:/path' or 'python:module:function' of the driver's machine"
            )

    @property
    def job(self) -> str:
        """The application as ``spark-submit`` gets it."""
        # Without the scheme "local", the driver's machine, spark-submit would upload it.
        folder = f"local://{self._shared}" if self._shared else hadoop_address(self._folder)
        return f"{folder}/{JOB_NAME}"

    def put_job(self, application: str) -> None:
        """Put job, code and plan into the submission's folder, in one file."""
        parts = Path(application).with_suffix("").parts
        module = ".".join(parts[len(parts) - parts[::-1].index(_PACKAGE) - 1 :])
        code = base64.b64encode(self._archive.read_bytes()).decode()
        text = _WHOLE_JOB.format(archive=self._archive.name, code=code, plan=self._plan, module=module)
        storage_path(f"{self._folder}/{JOB_NAME}", None).write_text(text)

    def put(self, file: Path) -> str:
        """Nothing for Spark: the job brings the archive."""
        self._archive = file
        return ""

    def write_plan(self, text: str) -> str:
        """Keep the plan for the job's file; the application's argument, as which the job writes it."""
        self._plan = text
        return PLAN_NAME

    def write_secrets(self, text: str) -> None:
        """Make the driver's secret, unless the author named one."""
        self._secret = self._settings.driver_secret
        if not self._secret:
            raise ConfigurationError(
                "nothing sets which secret of Kubernetes has the driver's credentials: give "
                "driver_secret='name:key' of one in the namespace, or driver_secret='create' where Airflow "
                "may make and remove one for each submission. Nothing was submitted"
            )
        if self._secret == NEW_SECRET:
            self._secret = f"{self._name}:{SECRET_KEY}"
            self._pods().create_secret(self._name, text)

    def complete(self, hook: SubmitHook) -> None:
        """Add the settings of the submission to those of the author."""
        hook.leave_following()
        labels = dict.fromkeys(self._tags, "true")
        if self._secret and self._settings.driver_secret == NEW_SECRET:
            labels[SECRET_LABEL] = self._name
        own = {f"spark.kubernetes.driver.label.{name}": value for name, value in labels.items()}
        own |= {_KUBERNETES_WAIT: "false", _POD_NAME: self._pod_name}
        if self._secret:
            own[f"spark.kubernetes.driver.secretKeyRef.{SECRET_VARIABLE}"] = self._secret
        hook.conf = {**hook.conf, **own}

    def submitted(self, line: str) -> str | None:
        """Nothing: the pod has the name that the submission gave it."""
        return None

    def remove(self, application: Application | None) -> None:
        """Remove the secret that was made for the driver, and a pod that has done its work or not begun it.

        Where nobody knows what became of the pod, no task follows it any more. If it still waits, it would
        wait for its secret for ever, or begin late and shut a newer driver out. If it runs, it has read the
        secret, and a newer driver shuts it out. One that failed is left, for its log.
        """
        pods = self._pods()
        pod_id = f"{self._settings.namespace}:{self._pod_name}"
        if application.has_succeeded if application is not None else pods.application(pod_id).is_waiting:
            pods.kill(pod_id)
        if self._settings.driver_secret == NEW_SECRET:
            pods.delete_secret(self._name)

    def _pods(self) -> KubernetesPods:
        return KubernetesPods(self._settings.namespace)


def _check_wait(conf: Mapping[str, str], name: str) -> None:
    if conf.get(name, "false").strip().lower() != "false":
        raise ConfigurationError(
            f"conf {name!r} is {conf[name]!r}: drop it, the task itself follows the application"
        )


def hadoop_address(address: str) -> str:
    """The address by which Hadoop knows what Airflow's object storage reads.

    :param address: a path, or a URL, whose connection (``s3://conn@bucket``) is Airflow's matter
    """
    scheme, mark, rest = address.partition("://")
    if not mark:
        return os.path.abspath(address)
    authority, slash, path = rest.partition("/")
    if scheme in ("s3", "s3n", "gs", "gcs"):
        authority = authority.rpartition("@")[2]
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{authority}{slash}{path}"


_HADOOP_SCHEMES = {"s3": "s3a", "s3n": "s3a", "gcs": "gs"}


def is_of_this_machine(path: Any) -> bool:
    """True for a path of a file system that is mounted here."""
    return path.protocol in ("file", "local", "")


# -- The one of a Spark connection -----------------------------------------------------------------------

Delivery = YarnDelivery | KubernetesDelivery


def delivery_of(settings: ClusterSettings, submission: Submission) -> Delivery:
    """The delivery of a submission to the cluster of its Spark connection."""
    kubernetes = "k8s" in spark_master(settings.conn_id)
    return (KubernetesDelivery if kubernetes else YarnDelivery)(settings, submission)
