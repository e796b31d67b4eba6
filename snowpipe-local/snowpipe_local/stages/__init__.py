"""Stages: where files wait to be loaded, and the file formats that define how to read them."""
