"""From an encoded file to uint8 pixels."""
