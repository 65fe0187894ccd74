"""Numbered migrations of the record, applied in order by `traces.store`."""
