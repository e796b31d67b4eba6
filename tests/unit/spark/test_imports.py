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


def test_what_the_operator_needs_does_not_load_spark():
    names = [
        f"airflow_provider_snowpipe.spark.{one}"
        for one in ("driver.plan", "driver.report", "driver.credentials")
    ]
    program = f"import sys, {', '.join(names)}; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
