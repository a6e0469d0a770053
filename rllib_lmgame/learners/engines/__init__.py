"""What carries out an update on the weights: PyTorch or DeepSpeed, the optimizer, copies of the weights."""
