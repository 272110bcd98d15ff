"""Projections: read models that follow the events, applied in batches, each batch wholly or not at all."""
