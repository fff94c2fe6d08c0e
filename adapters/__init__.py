"""Adapters to training frameworks: thin; they time, forward and weight."""
