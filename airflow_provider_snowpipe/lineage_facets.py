"""The run facet of this provider; imported only where the OpenLineage client is installed."""

from __future__ import annotations

from typing import ClassVar

import attrs
from airflow.providers.common.compat.openlineage.facet import RunFacet


@attrs.define
class SnowpipeChannelsRunFacet(RunFacet):  # type: ignore[misc, unused-ignore] # without the client it is no class
    """Where a run found and left its channels.

    No field is called a token: those would be masked as secrets, which offsets are not.

    :param pipe: the pipe's full name
    :param offsetFormat: the format of the offsets, such as ``file:line``
    :param channels: for each channel its name, ``fromOffset``, ``toOffset``, ``rows`` and ``rejected``; the
        client leaves out what is None: NULL or unknown
    """

    pipe: str
    offsetFormat: str  # noqa: N815 - OpenLineage's style of names
    channels: list[dict[str, str | int | None]]

    _additional_skip_redact: ClassVar[list[str]] = ["pipe", "offsetFormat"]
