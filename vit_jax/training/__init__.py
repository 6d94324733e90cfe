"""What a run is made of, besides its model, data, objective and optimiser."""
