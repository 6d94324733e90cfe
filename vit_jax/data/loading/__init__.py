"""From examples to batches on the devices."""
