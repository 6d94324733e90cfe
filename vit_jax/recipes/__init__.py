"""Published recipes as data; the files under `configs/` make runs of them."""
