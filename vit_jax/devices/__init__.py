"""Devices: meshes, shardings, processes, and what the hardware can do."""
