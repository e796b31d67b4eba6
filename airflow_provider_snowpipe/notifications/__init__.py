"""Notifiers about channels."""
