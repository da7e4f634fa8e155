"""Optional features (layer 8), each in one folder with everything that belongs to it.

The core never imports from here; `core/features.py` finds the folders. Features never import each
other. Each folder can be deleted: everything else still works, and using the deleted feature raises
one clear error.
"""
