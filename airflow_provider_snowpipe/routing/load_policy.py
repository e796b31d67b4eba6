"""What an author says about how to load: a forced path, a warehouse, thresholds, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_snowpipe.routing.cost_model import WAREHOUSE_CREDITS, CostModel
from airflow_provider_snowpipe.routing.load_plan import LoadPath
from airflow_provider_snowpipe.streaming.errors import ConfigurationError

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class LoadPolicy:
    """The author's side of a plan; the defaults suit an account with a small warehouse and no file pipe.

    :param path: ``auto``, or the path to take whatever the shape: ``stream``, ``copy`` or ``pipe``
    :param warehouse: size of the warehouse that COPY runs in
    :param largest_warehouse: the largest size that a plan may ask for instead
    :param warehouse_is_running: True when it runs anyway, so that no minimum is billed for a COPY
    :param has_pipe: True when a file pipe for these files exists, so that bounded data may go through it
    :param may_make_pipe: True when one may be made for files that keep arriving, False leaves the pipe out
        where there is none
    :param splits_csv: True where COPY reads CSV without compression by ``MULTI_LINE = FALSE`` and
        ``COMPRESSION = NONE``, with ``ON_ERROR`` of ``ABORT_STATEMENT`` or ``CONTINUE``: only then do many
        threads read one file (page "Preparing your data files")
    :param may_write_files: True when rows that are in no file may be written to files for COPY
    :param load_within: seconds that a bounded load without a freshness may take
    :param many_files: number of bounded files from which on they are a flood, whatever their size
    :param flood_bytes: uncompressed bytes from which on bounded data is a flood, whatever streaming costs
    :param band: how much better another path has to be than the previous one, as a fraction
    :param costs: the figures
    :param measured: seconds until a row could be queried in the last loads, by path, which go before the
        floors of the figures
    """

    path: str = AUTO
    warehouse: str = "X-SMALL"
    largest_warehouse: str = "X-LARGE"
    warehouse_is_running: bool = False
    has_pipe: bool = False
    may_make_pipe: bool = True
    splits_csv: bool = False
    may_write_files: bool = True
    load_within: float = 6 * 3600.0
    many_files: int = 1000
    flood_bytes: float = 100e9
    band: float = 0.25
    costs: CostModel = field(default_factory=CostModel)
    measured: Mapping[LoadPath, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path != AUTO and self.path not in list(LoadPath):
            raise ConfigurationError(f"path is {self.path!r}: give 'auto', 'stream', 'copy' or 'pipe'")
        for name in ("warehouse", "largest_warehouse"):
            if getattr(self, name) not in WAREHOUSE_CREDITS:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)!r}: give one of {', '.join(WAREHOUSE_CREDITS)}"
                )
        if self.load_within <= 0 or self.many_files < 1 or self.flood_bytes <= 0 or self.band < 0:
            raise ConfigurationError(
                f"load_within={self.load_within}, many_files={self.many_files}, "
                f"flood_bytes={self.flood_bytes}, "
                f"band={self.band}: the first three are above 0, the last is 0 or more"
            )

        if not isinstance(self.costs, CostModel):
            raise ConfigurationError(f"costs of policy is {self.costs!r}: give the argument costs instead")
        measured = self.measured
        if not isinstance(measured, Mapping) or any(
            path not in list(LoadPath) or not 0 < seconds < math.inf for path, seconds in measured.items()
        ):
            raise ConfigurationError(
                f"measured is {measured!r}: give seconds above 0 by 'stream', 'copy' or 'pipe'"
            )

    @property
    def forced(self) -> LoadPath | None:
        """The path that the author chose, None for ``auto``."""
        return None if self.path == AUTO else LoadPath(self.path)

    def floor(self, path: LoadPath) -> float:
        """Seconds until a row can be queried at best: as measured, or else by the figures.

        :param path: the path
        """
        figure: float = getattr(self.costs, f"{path.value}_floor_seconds")
        return self.measured.get(path, figure)
