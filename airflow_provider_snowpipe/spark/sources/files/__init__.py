"""The file source: ordered groups of files, a channel for each group."""
