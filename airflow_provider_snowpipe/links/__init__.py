"""Links from a task to where its rows can be seen."""
