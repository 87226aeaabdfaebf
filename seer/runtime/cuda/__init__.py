"""Running CUDA kernels: on a GPU through pycuda, or emulated on the CPU.

- device.py: what the rest needs of a device: memory, loading, launching, timing
- driver.py: a GPU, through pycuda
- emulated.py: the CPU in the place of a GPU
- spec.py: a device named as data, which another process can open
- loaded.py: one CudaModule on a device
- trial.py: a candidate checked and timed
- worker.py: the process in which candidates run; one for each device
- runner.py: that process seen from outside; failures are results
- build.py: candidates compiled ahead of their turn
- measure.py: a Measurer, which the search calls
- model.py: a whole model: its kernels on one stream
"""
