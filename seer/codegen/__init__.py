"""From a sketch and a row of parameters to machine code, and from kernels to a model."""
