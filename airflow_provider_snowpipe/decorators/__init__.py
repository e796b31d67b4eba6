"""Task decorators: a function's value becomes rows in a table."""
