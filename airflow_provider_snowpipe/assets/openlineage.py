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
    ``snowflake://<account>`` and ``<database>.<schema>.<table>``.

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
    return f"snowflake://{address.account}", name
