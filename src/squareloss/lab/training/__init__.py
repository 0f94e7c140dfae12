"""Training: the visible loop, many small networks stacked, image networks captured as CUDA graphs."""
