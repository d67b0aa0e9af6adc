"""A run's metrics on their way to TensorBoard, W&B and trackio, in processes beside it."""
