"""Studies: grids of runs, and what they say.

`definition` has what a study is, `runs` what a cell does, `views` what its figures show. The studies
that come with the package are files of `configs/studies`.
"""
