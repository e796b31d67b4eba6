"""Triggers behind the deferrable sensors."""
