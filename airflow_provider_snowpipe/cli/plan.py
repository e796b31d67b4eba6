"""``airflow snowpipe plan``: the load plan of a source, paths side by side."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from airflow_provider_snowpipe.cli.commands import print_lines, reported
from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook
from airflow_provider_snowpipe.operators.load_choice import ShapeSource
from airflow_provider_snowpipe.routing.cost_model import CostModel, LoadPolicy
from airflow_provider_snowpipe.routing.planner import plan_load
from airflow_provider_snowpipe.streaming.errors import ConfigurationError


@reported
def plan(args: Namespace) -> None:
    """Print the plan: a table of the paths, then reasons, advice and warnings; or all of it as JSON."""
    if (args.table is None) != (args.channel_prefix is None):
        raise ConfigurationError(
            f"--table is {args.table} and --channel-prefix is {args.channel_prefix}: the channels of a Kafka "
            "source are found by both; give both, or none"
        )
    hook = SnowpipeBulkHook(args.conn_id, table=args.table, database=args.database, schema=args.schema)
    source = ShapeSource(args.source, hook, args.storage_conn_id, args.kafka_conn_id, args.channel_prefix)
    shape = source.shape(_known(args))
    policy = LoadPolicy(
        path=args.path,
        warehouse=args.warehouse.upper(),
        warehouse_is_running=args.warehouse_is_running,
        has_pipe=args.has_pipe,
        costs=CostModel.with_figures(_figures(args.cost or [])),
    )
    made = plan_load(shape, policy, args.previous)
    if args.output == "json":
        print(json.dumps({"shape": shape.as_json(), "plan": made.as_json()}))
        return
    print_lines(args, made.table())
    print("\n".join(made.lines()))


def _known(args: Namespace) -> dict[str, Any]:
    """What the arguments say of the data; what they do not say is left to the source."""
    known: dict[str, Any] = {
        "freshness": args.freshness,
        "given_to": args.given_to,
        "partitions": args.partitions,
        "arrival_rate": args.arrival_rate,
        "backfill": args.backfill or None,
        "live_into_files": args.live_into_files or None,
        "bounded": False if args.endless else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _figures(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"--cost is {pair!r}: give name=number, such as text_ratio=6")
        found[name] = value
    return found
