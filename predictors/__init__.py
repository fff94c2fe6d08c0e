"""Predictors of worker speed: one file each, one registry."""
