"""From files to batches: sources, host transforms, the pipeline."""
