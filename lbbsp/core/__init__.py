"""Thinking: curves, sizing, the batch size manager. Pure: no sockets, no clock, no files."""
