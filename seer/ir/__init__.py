"""The intermediate representations: expressions, tensors, sketches, loop programs."""
