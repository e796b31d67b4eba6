"""Assets of this provider as OpenLineage datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_snowpipe.assets.uri import TableAddress

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.common.compat.sdk import Asset


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:
    """Name the table that an asset stands for as other producers of lineage name it.

    A channel is part of its table. Namespace and name are those of OpenLineage's naming rules for Snowflake,
    as the operators report them: ``snowflake://<account>`` and ``<database>.<schema>.<table>``.

    :param asset: an asset of the scheme ``snowpipe``
    :param lineage_context: not needed
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    namespace, name = dataset_identity(TableAddress.parse(asset.uri))
    return Dataset(namespace=namespace, name=name)


def dataset_identity(address: TableAddress) -> tuple[str, str]:
    """The namespace and the name of a table's dataset.

    :param address: the table, or a channel into it
    """
    name = ".".join((address.database, address.schema, address.table))
    return account_namespace(address.account), name


def account_namespace(account: str) -> str:
    """Return the namespace of an account's datasets, the same that the Snowflake provider gives its own.

    :param account: the account identifier
    """
    from airflow.providers.snowflake.utils.openlineage import fix_account_name

    return f"snowflake://{fix_account_name(account).lower()}"
