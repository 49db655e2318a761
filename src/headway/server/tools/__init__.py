"""Tool calls: how models write them, how to find them in an output, and how to have an output be one."""
