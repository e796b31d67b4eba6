"""``python -m airflow_provider_snowpipe.cli``: what ``airflow snowpipe`` is since Airflow 3.2."""

from __future__ import annotations

import logging

import airflow.settings  # noqa: F401  sets up its logging

from airflow_provider_snowpipe.cli.definition import parser


def main() -> None:
    """Run the command that the arguments name."""
    arguments = parser().parse_args()
    logging.basicConfig(force=True)  # Airflow 2 logs on standard output, which is for the answer
    arguments.func(arguments)


if __name__ == "__main__":
    main()
