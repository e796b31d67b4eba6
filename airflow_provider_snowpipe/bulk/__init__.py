"""The protocol of files: staged files, load history by SQL, and the REST API of file pipes.

Nothing here knows of Airflow, Spark or the local service. Import from the modules themselves; this package
re-exports nothing, to keep imports cheap.
"""
