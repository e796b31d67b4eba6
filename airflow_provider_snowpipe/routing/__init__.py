"""From the shape of data to a load plan: streaming, COPY or a pipe, with reasons, credits and latency.

Pure functions on plain values: nothing here does I/O except the probe of a local folder, and nothing knows of
Airflow, Spark or the local service. Import from the modules themselves.
"""
