"""What a rank runs once it is through the gate: model, data, loop, checkpoint, export."""
