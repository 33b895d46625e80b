"""What models are made of: attention, projections, rotary positions, and their kernels. Knows no model."""
