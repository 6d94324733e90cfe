"""Studies: grids of runs, and what they say. `definition` has what a study is; each other file here
that has a `get_study` is one that comes with the package: `fashion_mnist`.
"""
