"""Our code as a zip file, for executors and drivers that have not installed it.

``python -m airflow_provider_snowpipe.spark.driver.package_archive DIRECTORY`` writes the zip file and the
job's file beside each other, for a service that runs Spark applications by itself.
"""

from __future__ import annotations

import importlib.util
import py_compile
import shutil
import struct
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import airflow_provider_snowpipe

_ROOMS = ("bulk", "spark", "streaming")
_QUICKLY = 1
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


def write_package_archive(directory: Path) -> Path:
    """Write what runs on drivers and executors into a file for ``--py-files``.

    It is a zip, since executors import no wheel (observed with Spark 4.2), and it holds what Spark's tasks
    import and nothing else: neither the skin nor the local service. A process that runs from such a file
    passes it on.
    """
    package = Path(airflow_provider_snowpipe.__file__).parent
    target = directory / f"{package.name}.zip"
    if package.parent.is_file():
        shutil.copyfile(package.parent, target)
        return target
    rooms = [file for room in _ROOMS for file in sorted((package / room).rglob("*.py"))]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (package / "__init__.py", *rooms):
            name = file.relative_to(package.parent)
            for path, content in ((name, file.read_bytes()), (name.with_suffix(".pyc"), _compiled(file))):
                if content is not None:
                    entry = zipfile.ZipInfo(str(path), _FIXED_TIME)
                    archive.writestr(entry, content, zipfile.ZIP_DEFLATED, _QUICKLY)
    return target


def _compiled(file: Path) -> bytes | None:
    """A module as Python keeps it beside its source, None where it cannot be kept there.

    A zip file keeps nothing of what is compiled: each new process of an executor would compile 45 modules
    again. A Python of another version skips it for the source beside it. Its hash is not compared with
    that (PEP 552), since the times in a zip file are those of a time zone. What is not compiled yet is
    compiled now, so that the archive of one source is the same in each run: jobs over Spark Connect share a
    session by it.
    """
    content = _kept(file)
    if content is None:
        try:
            py_compile.compile(str(file), doraise=True)
        except (OSError, py_compile.PyCompileError):
            return None
        content = _kept(file)
    if content is None:
        return None
    unchecked = struct.pack("<I", 1) + importlib.util.source_hash(file.read_bytes())
    return importlib.util.MAGIC_NUMBER + unchecked + content[16:]


def _kept(file: Path) -> bytes | None:
    """What Python keeps of a module, None where it is not there or another source's."""
    kept = Path(importlib.util.cache_from_source(str(file)))
    if not kept.is_file():
        return None
    content, source = kept.read_bytes(), file.stat()
    made_of = (int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)
    is_of_it = content[:8] == importlib.util.MAGIC_NUMBER + bytes(4)
    return content if is_of_it and struct.unpack("<II", content[8:16]) == made_of else None


def main(argv: Sequence[str]) -> int:
    """Write the zip file and the job's file into a directory."""
    if len(argv) != 1 or not Path(argv[0]).is_dir():
        print("usage: package_archive DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(argv[0])
    print(write_package_archive(directory))
    print(shutil.copyfile(Path(__file__).with_name("job.py"), directory / "snowpipe_job.py"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
