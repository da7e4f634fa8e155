"""Detection of memory leaks during a run, and of the lines of code that hold the memory."""
