"""Stages: where files wait to be loaded, and the file formats that say how to read them."""
