"""Sensors that wait for commits."""
