"""The demonstration: real workers on real digits."""
