"""Which Airflow these tests run on."""

from importlib.metadata import version

AIRFLOW: tuple[int, int] = tuple(map(int, version("apache-airflow").split(".")[:2]))  # type: ignore[assignment]
"""Major and minor version, such as ``(3, 3)``; read without importing Airflow."""
