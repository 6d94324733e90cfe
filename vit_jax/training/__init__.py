"""The parts of a run besides its model, data, objective and optimiser."""
