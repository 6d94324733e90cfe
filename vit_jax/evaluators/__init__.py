"""What is measured during and after training."""
