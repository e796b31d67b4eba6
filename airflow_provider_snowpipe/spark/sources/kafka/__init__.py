"""The Kafka source: a channel for each topic-partition, named and numbered as the Kafka connector v4 does."""
