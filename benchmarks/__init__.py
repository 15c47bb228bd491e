"""Measurements of the product, `./dev bench`."""

from singularity_scheduler import compiled

compiled.use()  # as `simulate` does: before a benchmark imports what is compiled
