"""Foreign weight formats, in and out."""
