"""What a project of dbt does, against the service that the environment names; the argument is its folder.

Needs dbt-core, dbt-snowflake and the variables of ``snowpipe-local env``. Prints their version.
"""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import snowflake.connector
from dbt.cli.main import dbtRunner

_FOLDER = Path(sys.argv[1])
_ADDRESS = urlsplit(os.environ["SNOWPIPE_LOCAL_URL"])
_ACCOUNT: dict[str, Any] = {
    "account": os.environ["SNOWPIPE_LOCAL_ACCOUNT"],
    "user": os.environ["SNOWPIPE_LOCAL_USER"],
    "password": Path(os.environ["SNOWPIPE_LOCAL_PASSWORD_FILE"]).read_text().strip(),
    "host": _ADDRESS.hostname,
    "port": _ADDRESS.port,
    "database": "LOCAL",
    "schema": "DBT_SHOP",
}
_FILES = {
    "dbt_project.yml": "name: shop\nversion: '1.0'\nprofile: shop\n",
    "profiles.yml": json.dumps(
        {"shop": {"target": "dev", "outputs": {"dev": {"type": "snowflake", "threads": 2, **_ACCOUNT}}}}
    ),
    "seeds/raw_orders.csv": "id,customer,amount,ordered_at\n1,ann,10.50,2024-01-01 10:00:00\n"
    "2,bob,20.00,2024-01-02 11:00:00\n3,cy,5.25,2024-01-03 12:00:00\n",
    "models/merged.sql": "{{ config(materialized='incremental', unique_key='id') }}\n"
    "select * from {{ ref('raw_orders') }}\n"
    "{% if is_incremental() %} where ordered_at >= (select max(ordered_at) from {{ this }}) {% endif %}",
    "models/replaced.sql": "{{ config(materialized='incremental', unique_key=['id', 'customer'], "
    "incremental_strategy='delete+insert', on_schema_change='sync_all_columns') }}\n"
    "select * from {{ ref('raw_orders') }}",
    "models/appended.sql": "{{ config(materialized='incremental', incremental_strategy='append') }}\n"
    "select id, {{ dbt.current_timestamp() }} as at from {{ ref('raw_orders') }}",
    "models/totals.sql": "{{ config(materialized='view', secure=true) }}\n"
    "select customer, sum(amount) as total from {{ ref('merged') }} group by customer",
    "models/kept.sql": "{{ config(materialized='table', cluster_by=['customer'], copy_grants=true) }}\n"
    "select customer, {{ dbt.datediff('ordered_at', \"'2024-02-01'::timestamp\", 'day') }} as days "
    "from {{ ref('merged') }}",
    "models/schema.yml": """
models:
  - name: merged
    description: "Orders, one row an 'id'"
    config: {persist_docs: {relation: true, columns: true}}
    columns:
      - {name: id, description: the number, tests: [unique, not_null]}
      - name: customer
        tests: [{accepted_values: {values: [ann, bob, cy]}}]
  - name: totals
    columns:
      - name: customer
        tests: [not_null, {relationships: {to: ref('kept'), field: customer}}]
sources:
  - name: app
    schema: DBT_SHOP
    freshness: {error_after: {count: 12, period: hour}}
    tables: [{name: raw_orders}]
""",
    "snapshots/history.sql": """
{% snapshot checked %}
{{ config(target_schema='DBT_HISTORY', unique_key='id', strategy='check', check_cols=['amount']) }}
select * from {{ ref('raw_orders') }}
{% endsnapshot %}
{% snapshot timed %}
{{ config(target_schema='DBT_HISTORY', unique_key='id', strategy='timestamp', updated_at='ordered_at',
          hard_deletes='invalidate') }}
select * from {{ ref('raw_orders') }}
{% endsnapshot %}
""",
}


def dbt(*command: str) -> None:
    """Run a command of dbt; it has to succeed."""
    done = dbtRunner().invoke(
        [*command, "--quiet", "--project-dir", str(_FOLDER), "--profiles-dir", str(_FOLDER)]
    )
    assert done.success, (command, done.exception, [getattr(one, "message", "") for one in done.result or ()])


def values(statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with snowflake.connector.connect(**_ACCOUNT) as connection, connection.cursor() as cursor:
        return [tuple(row) for row in cursor.execute(statement).fetchall()]


def main() -> None:
    """Seed, run and document the project as its rows change."""
    for name, text in _FILES.items():
        (_FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (_FOLDER / name).write_text(text)
    for command in ("seed", "run", "snapshot", "test"):
        dbt(command)
    assert values("SELECT id, customer FROM merged ORDER BY id") == [(1, "ann"), (2, "bob"), (3, "cy")]

    seed = _FOLDER / "seeds/raw_orders.csv"
    seed.write_text(seed.read_text().replace("3,cy,5.25", "3,cy,6.25").replace("2,bob,20", "2,bob,21"))
    for command in ("seed", "run", "snapshot", "test"):
        dbt(command)
    amounts = values("SELECT id, amount::VARCHAR FROM merged ORDER BY id")
    assert amounts == [(1, "10.5"), (2, "20"), (3, "6.25")]
    assert values("SELECT id, amount::VARCHAR FROM replaced ORDER BY id")[1:] == [(2, "21"), (3, "6.25")]
    assert values("SELECT count(*), count(DISTINCT id) FROM appended") == [(6, 3)]
    ended = "SELECT id, count(*), count(dbt_valid_to) FROM dbt_history.checked GROUP BY id ORDER BY id"
    assert values(ended) == [(1, 1, 0), (2, 2, 1), (3, 2, 1)]

    seed.write_text("".join(seed.read_text().splitlines(keepends=True)[:-1]))
    for command in (
        ("seed", "--full-refresh"), ("run", "--full-refresh"), ("snapshot",), ("build",),
        ("source", "freshness"), ("docs", "generate"),
    ):  # fmt: skip
        dbt(*command)
    assert values("SELECT count(*) FROM merged") == [(2,)]
    assert values("SELECT id FROM dbt_history.timed WHERE dbt_valid_to IS NOT NULL") == [(3,)]
    catalog = json.loads((_FOLDER / "target/catalog.json").read_text())
    merged = catalog["nodes"]["model.shop.merged"]
    assert merged["metadata"]["type"] == "BASE TABLE"
    assert merged["metadata"]["comment"] == "Orders, one row an 'id'"
    assert merged["columns"]["ID"]["comment"] == "the number"
    assert catalog["errors"] is None
    print(version("dbt-snowflake"))


# dbt starts processes, which import this file.
if __name__ == "__main__":
    main()
