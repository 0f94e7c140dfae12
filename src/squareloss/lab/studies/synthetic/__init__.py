"""The studies on synthetic data, spirals and sine: stacks of small networks, and what is measured of them."""
