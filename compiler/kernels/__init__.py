"""Raw Triton kernels, one family a file. Importing one imports triton; a plan names them and imports none."""
