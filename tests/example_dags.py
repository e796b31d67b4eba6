"""The example DAGs, and which Airflow each of them needs."""

from pathlib import Path

from tests.airflow_version import AIRFLOW

DAGS_FOLDER = Path(__file__).parents[1] / "dags"
FILES = sorted(path.stem for path in DAGS_FOLDER.glob("*.py"))
"""Each file is named after its DAG."""
_FIRST_AIRFLOW = {
    "catch_up": (3, 0),
    "kafka_to_snowflake": (3, 0),
    "commit_driven_totals": (3, 1),
    "lag_deadline": (3, 2),
    "reset_and_replay": (3, 3),
}
"""The first version that can read a DAG; all others are read since 2.11."""


def runs_here(dag_id: str) -> bool:
    return _FIRST_AIRFLOW.get(dag_id, (2, 11)) <= AIRFLOW


FILES_FOR_THIS_AIRFLOW = [name for name in FILES if runs_here(name)]
FILES_FOR_A_LATER_AIRFLOW = [name for name in FILES if not runs_here(name)]
