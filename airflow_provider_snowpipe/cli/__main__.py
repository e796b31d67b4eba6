"""``python -m airflow_provider_snowpipe.cli``: what ``airflow snowpipe`` is since Airflow 3.2."""

from __future__ import annotations

from airflow_provider_snowpipe.cli.definition import parser


def main() -> None:
    """Run the command that the arguments name."""
    arguments = parser().parse_args()
    arguments.func(arguments)


if __name__ == "__main__":
    main()
