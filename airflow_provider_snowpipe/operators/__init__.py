"""Operators that load rows."""
