"""Loop programs as CUDA C."""
