"""``df.write.format("snowpipe")`` and ``df.writeStream.format("snowpipe")``: DataFrames into channels."""
