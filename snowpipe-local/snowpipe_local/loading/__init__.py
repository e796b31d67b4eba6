"""Loading of staged files: readers, COPY INTO, load history, file pipes."""
