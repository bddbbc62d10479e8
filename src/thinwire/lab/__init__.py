"""The laboratory: data sets, models, training on several workers, comparison and report."""
