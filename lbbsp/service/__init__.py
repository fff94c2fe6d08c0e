"""Serving: the manager's process."""
