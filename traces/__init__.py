"""The record: one DuckDB file a laboratory, and what is computed from it."""
