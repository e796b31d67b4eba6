"""Our code as a zip file, for executors that have not installed it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import airflow_provider_snowpipe

_ROOMS = ("spark", "streaming")
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def write_package_archive(directory: Path) -> Path:
    """Write what runs on executors into a file for ``--py-files``.

    It is a zip, since executors import no wheel (observed with Spark 4.2), and it holds what Spark's tasks
    import and nothing else: neither the skin nor the local service.

    :param directory: where the file goes
    :returns: the file
    """
    package = Path(airflow_provider_snowpipe.__file__).parent
    target = directory / f"{package.name}.zip"
    rooms = [file for room in _ROOMS for file in sorted((package / room).rglob("*.py"))]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (package / "__init__.py", *rooms):
            entry = zipfile.ZipInfo(str(file.relative_to(package.parent)), _FIXED_TIME)
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return target
