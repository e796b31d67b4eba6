"""The protocol of Snowpipe Streaming channels: credentials, client, channel, offset tokens, NDJSON.

Nothing here knows of Airflow, Spark or the local service, so it imports wherever Python runs. Import
from the modules themselves; this package re-exports nothing, to keep imports cheap.
"""
