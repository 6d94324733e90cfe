"""Data written anew, once, as shards that need little work to read."""
