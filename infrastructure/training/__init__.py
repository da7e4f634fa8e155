"""Layer 3: the training system. One loop (loop.py), three doors, folders of parts."""
