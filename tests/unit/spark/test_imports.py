import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "airflow" or name.startswith("snowpipe_local"):
            raise ImportError(f"{name} must not be needed here")

sys.meta_path.insert(0, Blocked())
import airflow_provider_snowpipe.spark as package
doors = ["data_source.source"]  # subclass PySpark's classes
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for door in doors:
    names.remove(f"{package.__name__}.{door}")
for name in names:
    importlib.import_module(name)
print(len(names), package.job_file())
print(sorted({"airflow", "pyspark"} & set(sys.modules)))
"""


def test_everything_for_spark_imports_without_airflow_and_the_local_service():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert int(first.split()[0]) >= 10
    assert first.endswith("job.py")
    assert second == "[]"


FIND_ROWS = """
import sys
import airflow_provider_snowpipe.spark.driver.run
from airflow_provider_snowpipe.spark.sources.files.spec import FileSource
from airflow_provider_snowpipe.spark.sources.registry import open_source
from airflow_provider_snowpipe.streaming.limits import BatchLimits
from airflow_provider_snowpipe.streaming.offsets import UnitOffset

source = open_source(FileSource(sys.argv[1]), "fail").for_target("account/pipe", run="r")
(partition,) = source.partitions()
position = UnitOffset(1, "1.ndjson", 2)
done, claimed = partition.is_done(position), source.claim({"c": partition}, {"c": position})
if sys.argv[2] == "load":
    assert sum(part.rows for part in partition.read(partition.resume(None), BatchLimits())) == 2
source.mark_complete({partition.name: position})
print(done, claimed, sorted({"jwt", "numpy", "pandas", "pyarrow"} & set(sys.modules)))
"""


def test_finding_no_new_rows_in_files_imports_no_library_for_rows(tmp_path):
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "1.ndjson").write_text('{"A": 1}\n{"A": 2}\n')

    def imported(what):
        command = [sys.executable, "-c", FIND_ROWS, str(tmp_path), what]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert "pyarrow" in imported("load")
    assert imported("nothing") == "True True []"
