"""The specification of an Iceberg table that is read snapshot by snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from airflow_provider_snowpipe.spark.source import SourceSecrets
from airflow_provider_snowpipe.spark.sources.tables.spec import (
    TypedRowsSource,
    check_one_address,
    check_options,
)
from airflow_provider_snowpipe.streaming.arguments import BinaryFormat, NonFinite, without_secrets
from airflow_provider_snowpipe.streaming.checked_values import is_template
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.offsets import BatchRowOffset


@dataclass(frozen=True, slots=True, repr=False)
class IcebergSource(TypedRowsSource):
    """The rows that were appended to an Iceberg table, snapshot by snapshot.

    The position of a row is the sequence number of the snapshot that appended it, and its number among that
    snapshot's rows: file by file as the snapshot lists them, row by row as they lie in the file. Neither ever
    changes, so that no column has to order the rows.

    :param table: the table's name in a catalog, ``namespace.table``
    :param catalog: the catalog's name in PyIceberg's configuration
    :param path: instead, the table's directory with a ``version-hint.text``, or one of its metadata files
    :param options: further properties of the catalog or of the file store that are known to hold no secret
    :param partition_by: a field of the table's partitioning whose values are the partitions, each with a
        channel; without, one channel
    :param starting_snapshot: id of the snapshot that is loaded whole where nothing is committed;
        without, the table's first one
    :param binary: the pipe's ``BINARY_INPUT_FORMAT``; a default pipe takes BASE64
    :param non_finite: ``refuse`` or ``null`` for NaN, infinities, years outside 0 to 9999, times beyond a day
    :param explicit_nulls: True writes nulls, which store NULL; False leaves them out, so that a column's
        DEFAULT applies
    :param metadata: columns that show where rows are from, each with ``run_id``, ``version`` (the sequence
        number) or ``row``
    :param conn_id: the Airflow connection to the catalog, with its address and credentials, of the type
        ``iceberg``; what the source itself sets goes before it
    :param kind: always ``iceberg``
    """

    table: str | None = None
    catalog: str = "default"
    path: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: str | None = None
    starting_snapshot: int | None = None
    binary: BinaryFormat = "BASE64"
    non_finite: NonFinite = "refuse"
    explicit_nulls: bool = True
    metadata: Mapping[str, str] | None = None
    conn_id: str | None = None
    kind: Literal["iceberg"] = "iceberg"
    source_class: ClassVar[str] = "airflow_provider_snowpipe.spark.sources.iceberg.reader:IcebergSource"
    offset_format = BatchRowOffset.format_name
    takes_connection: ClassVar[bool] = True

    @staticmethod
    def with_connection(values: Mapping[str, Any], connection: Any) -> tuple[dict[str, Any], SourceSecrets]:
        """Complete the source from a connection to its catalog.

        Its type may be ``iceberg``, of the Apache Iceberg provider: its host is the catalog's URI, login and
        password are client id and client secret, and the extra holds further properties of PyIceberg's
        catalog.
        """
        # PyIceberg's properties are texts; JSON's ``true`` is ``true``.
        properties = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in connection.extra_dejson.items()
        }
        if connection.host:
            port = f":{connection.port}" if connection.port else ""
            address = f"{connection.schema or 'https'}://{connection.host}{port}"
            properties.setdefault("uri", connection.host if "://" in connection.host else address)
        if connection.password and connection.login:
            properties.setdefault("credential", f"{connection.login}:{connection.password}")
        elif connection.password:
            properties.setdefault("token", connection.password)
        given = values.get("options") or {}
        secrets = {
            name: value for name, value in properties.items() if name not in given and _is_secret(name, value)
        }
        options = {name: value for name, value in properties.items() if name not in secrets}
        return {**values, "options": {**options, **given}}, SourceSecrets(secrets)

    def _check(self) -> None:
        check_one_address(self.path, self.table)
        self._check_metadata()
        if self.table and "." not in self.table and not is_template(self.table):
            raise ConfigurationError(
                f"source table is {self.table!r}: give namespace and name, for example 'sales.orders'"
            )
        remedy = "put it into an Iceberg connection and give its id as conn_id"
        check_options(self.options, _PROPERTIES, "PyIceberg", remedy)

    @property
    def default_name(self) -> str:
        """The table's name, or the last part of the path that is not about metadata."""
        if self.table:
            return self.table.rpartition(".")[2]
        path = PurePosixPath(self.path or "")
        return path.parent.parent.name if path.name.endswith(".metadata.json") else path.name

    @property
    def address(self) -> str:
        """The table with its catalog, or its address."""
        return f"{self.catalog}.{self.table}" if self.table else self.path or ""


_KNOWN = """
    type uri warehouse prefix scope audience resource py-catalog-impl py-io-impl oauth2-server-uri echo
    rest-page-size rest.authorization-url rest.signing-name rest.signing-region rest.sigv4-enabled
    rest.sigv4.max-retries scan-planning-mode snapshot-loading-mode namespace-separator
    view-endpoints-supported init_catalog_tables pool_pre_ping downcast-ns-timestamp-to-us-on-write
    client.profile-name client.region client.role-arn client.role-session-name
    dynamodb.profile-name dynamodb.region table-name gcp.bigquery.location gcp.bigquery.project-id
    glue.endpoint glue.id glue.max-retries glue.profile-name glue.region glue.retry-mode glue.skip-archive
    hive.hive2-compatible hive.kerberos-authentication hive.kerberos-service-name
    lock-check-max-wait-time lock-check-min-wait-time lock-check-retries
    s3.anonymous s3.connect-timeout s3.endpoint s3.force-virtual-addressing s3.profile-name s3.proxy-uri
    s3.region s3.request-timeout s3.resolve-region s3.retry-strategy-impl s3.role-arn s3.role-session-name
    s3.server-side-encryption s3.signer s3.signer.endpoint s3.signer.uri s3.sse-kms-key-id
    adls.account-host adls.account-name adls.anon adls.blob-storage-authority adls.blob-storage-scheme
    adls.client-id adls.dfs-storage-authority adls.dfs-storage-scheme adls.tenant-id
    gcs.access gcs.cache-timeout gcs.consistency gcs.default-bucket-location gcs.project-id
    gcs.requester-pays gcs.service.host gcs.version-aware hdfs.host hdfs.port hdfs.user hf.endpoint
"""
_PROPERTIES = frozenset(_KNOWN.split())
"""Properties of PyIceberg 0.12 that may stand in a plan; others of a connection go with its secrets."""


def _is_secret(name: str, value: str) -> bool:
    """True for what no plan may hold: a property that is not known, and an address with a user in it."""
    is_address_with_user = name == "uri" and "@" in value
    return name.lower() not in _PROPERTIES or is_address_with_user or without_secrets(value) != value
