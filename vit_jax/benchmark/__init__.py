"""What a config costs on this machine: its input, its step, its loop, its inference."""
