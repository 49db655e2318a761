"""Native CPU kernels: one C++ file, built for the machine at first use."""
