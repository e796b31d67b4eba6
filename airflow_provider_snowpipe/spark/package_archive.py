"""Our code as a zip file, for executors and drivers that have not installed it.

``python -m airflow_provider_snowpipe.spark.package_archive DIRECTORY`` writes the zip file and the job's file
beside each other, for a place that runs Spark applications by itself.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import airflow_provider_snowpipe
from airflow_provider_snowpipe.spark import job_file

JOB_FILE_NAME = "snowpipe_job.py"
_ROOMS = ("bulk", "spark", "streaming")
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def write_package_archive(directory: Path) -> Path:
    """Write what runs on drivers and executors into a file for ``--py-files``.

    It is a zip, since executors import no wheel (observed with Spark 4.2), and it holds what Spark's tasks
    import and nothing else: neither the skin nor the local service. A process that runs from such a file
    passes it on.

    :param directory: where the file goes
    :returns: the file
    """
    package = Path(airflow_provider_snowpipe.__file__).parent
    target = directory / f"{package.name}.zip"
    if package.parent.is_file():
        shutil.copyfile(package.parent, target)
        return target
    rooms = [file for room in _ROOMS for file in sorted((package / room).rglob("*.py"))]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (package / "__init__.py", *rooms):
            entry = zipfile.ZipInfo(str(file.relative_to(package.parent)), _FIXED_TIME)
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return target


def main(argv: Sequence[str]) -> int:
    """Write the zip file and the job's file.

    :param argv: the directory
    :return: the exit code
    """
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        print("usage: python -m airflow_provider_snowpipe.spark.package_archive DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(argv[0])
    print(write_package_archive(directory))
    print(shutil.copyfile(job_file(), directory / JOB_FILE_NAME))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
