"""Asset URIs of tables and channels: ``snowpipe://<account>/<database>/<schema>/<table>[/<channel>]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, unquote, urlsplit

from airflow_provider_snowpipe.streaming.arguments import check_switch
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from airflow_provider_snowpipe.streaming.names import check_channel_name, check_name, quote_url_segment

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.common.compat.sdk import Asset


SCHEME = "snowpipe"
PARTITIONED_KEY = "snowpipe_partitioned"
"""Key of an asset's extra: true makes one event for each loaded partition."""
_FORM = f"{SCHEME}://<account>/<database>/<schema>/<table>[/<channel>]"


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table, or one channel into it, in an account.

    Database, schema, table and channel are exact names: case counts, and what a URI cannot hold is
    percent-encoded. The account is one whatever its case, and is written in small letters.

    :param account: the account identifier, ``<organization>-<account>``
    """

    account: str
    database: str
    schema: str
    table: str
    channel: str | None = None

    def __post_init__(self) -> None:
        if not (self.account and isinstance(self.account, str)) or any(
            not (one.isalnum() or one in "._-") for one in self.account
        ):
            raise ConfigurationError(
                f"account {self.account!r}: give the account identifier (letters, digits, '.', '_' and '-')"
            )
        object.__setattr__(self, "account", self.account.lower())
        for kind in ("database", "schema", "table"):
            check_name(kind, getattr(self, kind))
        if self.channel is not None:
            check_channel_name(self.channel)

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Read a URI."""
        return cls.of(urlsplit(uri), uri)

    @classmethod
    def of(cls, parts: SplitResult, uri: str | None = None) -> Self:
        """Read a URI that is split already."""
        # User and password, if there are any, are kept out of the error's text.
        shown = uri if uri is not None and "@" not in uri else f"{parts.scheme}://…{parts.path}"
        segments = parts.path.strip("/").split("/")
        for what, is_wrong in (
            ("has another scheme", parts.scheme.lower() != SCHEME),
            ("has a query", parts.query),
            ("has a fragment", parts.fragment),
            ("names a user or a port, which belong into the connection", set("@:") & set(parts.netloc)),
            (
                f"has {len(list(filter(None, segments)))} names after the account, in which a '/' is %2F",
                len(segments) not in (3, 4) or "" in segments,
            ),
        ):
            if is_wrong:
                raise ConfigurationError(f"asset URI {shown!r} {what}: give {_FORM}")
        names = [unquote(one, errors="strict") for one in segments]
        return cls(unquote(parts.netloc), *names)

    @property
    def names(self) -> tuple[str, ...]:
        """Database, schema, table and, where there is one, channel."""
        names = (self.database, self.schema, self.table)
        return names if self.channel is None else (*names, self.channel)

    def of_table(self) -> TableAddress:
        """The table without a channel."""
        return TableAddress(self.account, self.database, self.schema, self.table)

    def __str__(self) -> str:
        return f"{SCHEME}://{self.account}/" + "/".join(map(quote_url_segment, self.names))


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Bring a URI of this scheme into its one form; Airflow calls it for every asset."""
    return urlsplit(str(TableAddress.of(uri)))


def snowpipe_asset(
    *,
    account: str,
    database: str,
    schema: str,
    table: str,
    channel: str | None = None,
    partitioned: bool = False,
    extra: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Asset:
    """Make the asset of a table, or of one channel into it.

    :param account: the account identifier, ``<organization>-<account>``
    :param database: the database
    :param schema: the schema
    :param table: the table
    :param channel: a channel, None for the whole table
    :param partitioned: True makes one event for each loaded partition, for partitioned timetables (3.3)
    :param extra: the asset's extra
    :param kwargs: other arguments of ``Asset``, such as ``name``, ``group`` and ``watchers`` (Airflow 3)
    :raises ConfigurationError: if a name is not usable
    """
    from airflow.providers.common.compat.sdk import Asset

    check_switch("partitioned", partitioned)
    uri = str(TableAddress(account, database, schema, table, channel))
    more = {**(extra or {}), **({PARTITIONED_KEY: True} if partitioned else {})}
    return Asset(uri=uri, extra=more or None, **kwargs)


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:
    """Name the table that an asset stands for as other producers of lineage name it.

    A channel is part of its table. Namespace and name are those of OpenLineage's naming rules for Snowflake,
    as the operators report them: ``snowflake://<account>`` and ``<database>.<schema>.<table>``.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    namespace, name = dataset_identity(TableAddress.parse(asset.uri))
    return Dataset(namespace=namespace, name=name)


def dataset_identity(address: TableAddress) -> tuple[str, str]:
    """The namespace and the name of a table's dataset."""
    name = ".".join((address.database, address.schema, address.table))
    return account_namespace(address.account), name


def account_namespace(account: str) -> str:
    """Return the namespace of an account's datasets, the same that the Snowflake provider gives its own."""
    from airflow.providers.snowflake.utils.openlineage import fix_account_name

    return f"snowflake://{fix_account_name(account).lower()}"
